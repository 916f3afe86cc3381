"""Authentication and permissions: principals, their credentials, and the one table of roles that RPCs need."""
