//! The control plane: sources, registry, translation, push, certificate service
