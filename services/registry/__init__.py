"""The registry service: `kolm.registry.v1.RegistryService` over manifests, blobs and a catalogue."""
