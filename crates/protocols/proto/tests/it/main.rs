//! The committed generated code is equal to the output for the `.proto` files, so that building needs no protoc and
//! no build script. `VOILE_BLESS=1 cargo test -p voile-proto --test it` rewrites the files:
//!
//!     proto/*.proto --protox--> descriptors --prost--> proto/src/generated/     (messages)
//!                                           --tonic--> identity, xds: src/generated/ (services)

mod fresh;
