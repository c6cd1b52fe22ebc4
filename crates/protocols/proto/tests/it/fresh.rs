//! Regenerates into a temporary folder and compares with the committed code.

use std::fs;
use std::path::{Path, PathBuf};

use tonic_prost_build::{Builder, Config};

/// One `.proto` file and where its code lives.
struct Source {
    proto: &'static str,
    package: &'static str,
    module: &'static str,
    /// Crate and module that hold the service stubs, if the file has a service.
    service: Option<(&'static str, &'static str)>,
}

const SOURCES: [Source; 10] = [
    Source {
        proto: "envoy/discovery.proto",
        package: "envoy.service.discovery.v3",
        module: "discovery",
        service: Some(("protocols/xds", "ads")),
    },
    Source {
        proto: "istio/certificate.proto",
        package: "istio.v1.auth",
        module: "certificate",
        service: Some(("protocols/identity", "certificate_service")),
    },
    Source {
        proto: "envoy/access_log.proto",
        package: "envoy.service.accesslog.v3",
        module: "access_log",
        service: Some(("protocols/telemetry", "access_log_service")),
    },
    Source {
        proto: "envoy/external_authorization.proto",
        package: "envoy.service.auth.v3",
        module: "external_authorization",
        service: Some(("support/testkit", "authorization_service")),
    },
    Source {
        proto: "envoy/rate_limit.proto",
        package: "envoy.service.ratelimit.v3",
        module: "rate_limit",
        service: Some(("support/testkit", "rate_limit_service")),
    },
    Source {
        proto: "opentelemetry/trace.proto",
        package: "opentelemetry.proto.collector.trace.v1",
        module: "trace",
        service: Some(("protocols/telemetry", "trace_service")),
    },
    Source {
        proto: "istio/workload.proto",
        package: "istio.workload",
        module: "workload",
        service: None,
    },
    Source {
        proto: "istio/authorization.proto",
        package: "istio.security",
        module: "authorization",
        service: None,
    },
    Source {
        proto: "istio/zds.proto",
        package: "istio.workload.zds",
        module: "zds",
        service: None,
    },
    Source {
        proto: "voile/proxy.proto",
        package: "voile.proxy.v1",
        module: "proxy",
        service: None,
    },
];

#[test]
fn generated_code_is_fresh() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = here
        .ancestors()
        .nth(2)
        .expect("invariant: a crate lies in a group of crates/");
    let bless = std::env::var_os("VOILE_BLESS").is_some();
    let mut stale = Vec::new();
    let described = here.join("src/generated/envoy.bin");
    let wanted = describe(here);
    if fs::read(&described).is_ok_and(|found| found == wanted) {
    } else if bless {
        write(&described, &wanted);
    } else {
        stale.push(described);
    }
    for source in &SOURCES {
        let messages = generate(here, source, false);
        let mut files = vec![(
            here.join("src/generated")
                .join(format!("{}.rs", source.module)),
            messages,
        )];
        if let Some((owner, module)) = source.service {
            let path = crates
                .join(owner)
                .join("src/generated")
                .join(format!("{module}.rs"));
            files.push((path, generate(here, source, true)));
        }
        for (path, wanted) in files {
            if fs::read_to_string(&path).is_ok_and(|found| found == wanted) {
                continue;
            }
            if bless {
                write(&path, wanted.as_bytes());
            } else {
                stale.push(path);
            }
        }
    }
    assert!(
        stale.is_empty(),
        "generated code is stale: {stale:?}; run `VOILE_BLESS=1 cargo test -p voile-proto --test it` and commit"
    );
}

/// The code of one file: its messages, or its service stubs over messages that live in `voile_proto`.
fn generate(here: &Path, source: &Source, service: bool) -> String {
    let descriptors = protox::compile([source.proto], [here.join("proto")])
        .unwrap_or_else(|error| panic!("{}: {error:?}", source.proto));
    let out = tempfile::tempdir().expect("a temporary folder");
    let mut builder: Builder = tonic_prost_build::configure()
        .build_client(service)
        .build_server(service)
        .build_transport(service)
        .emit_rerun_if_changed(false)
        // Ordered maps, so that equal messages have equal bytes: versions are hashes of them.
        .btree_map(".")
        // Slices of the received buffer; buffers are read one at a time.
        .bytes(".voile.proxy.v1.PackedRoutes")
        .out_dir(out.path());
    let mut config = Config::new();
    config.enable_type_names();
    config.type_name_domain(["."], "type.googleapis.com");
    if service {
        builder = builder.extern_path(
            format!(".{}", source.package),
            format!("::voile_proto::{}", source.module),
        );
    }
    builder
        .compile_fds_with_config(descriptors, config)
        .unwrap_or_else(|error| panic!("{}: {error}", source.proto));
    let code = fs::read_to_string(out.path().join(format!("{}.rs", source.package)))
        .unwrap_or_else(|error| panic!("{}: nothing generated: {error}", source.proto));
    let what = if service { "Service stubs" } else { "Messages" };
    format!(
        "//! {what} of package `{}`, generated from `crates/protocols/proto/proto/{}`.\n\
         //! Never edited by hand: `VOILE_BLESS=1 cargo test -p voile-proto --test it` writes this file again,\n\
         //! and the test `generated_code_is_fresh` keeps it true.\n\n{}",
        source.package,
        source.proto,
        code.replace("// This file is @generated by prost-build.\n", ""),
    )
}

/// Returns the description of `proto/xds/`, for programs that make its messages at run time.
fn describe(here: &Path) -> Vec<u8> {
    let folder = here.join("proto/xds");
    let listed =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = listed.flatten().map(|entry| entry.path()).collect();
    files.sort();
    let compiler = protox::Compiler::new([here.join("proto")]);
    let mut compiler = compiler.unwrap_or_else(|error| panic!("{error:?}"));
    compiler.include_imports(true).include_source_info(false);
    if let Err(error) = compiler.open_files(&files) {
        panic!("{error:?}");
    }
    compiler.encode_file_descriptor_set()
}

fn write(path: &PathBuf, text: &[u8]) {
    let folder = path.parent().expect("invariant: a file lies in a folder");
    fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
