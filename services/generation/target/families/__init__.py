"""The families of models that can be served: what tells their layers apart, one file each."""
