//! Other programs, unchanged, through two sidecars on an undeclared port, in every mode: databases whose server speaks first or
//! which change to TLS midway, a mail server, a forward proxy, a cache under load, and a raw echo with half-closes. If a program
//! is missing, its test is skipped.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use voile_host::netns::Namespace;
use voile_testkit::prerequisites::{Prerequisite, program, skip};

use super::{Captured, FAR, PATIENCE, SERVER, VIP, connect, listen};
use crate::mesh::{application, series, wait_until};

/// A port of the service whose name says no protocol, and the target of it.
const UNDECLARED: u16 = 9000;
/// Port of the web server behind the forward proxy.
const WEB: u16 = 8088;
/// A user that is not root, since some servers refuse to run as root.
const NOBODY: u32 = 65534;

/// A server of strangers', in a folder of its own; ended when dropped.
struct Server {
    child: Child,
    end: Signal,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = kill_process(Pid::from_child(&self.child), self.end);
        let _ = self.child.wait();
    }
}

/// A program of PostgreSQL, on the PATH or where Debian hides it.
fn postgres(name: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.into_iter().flatten().flatten();
    let mut hidden = versions.map(|version| version.path().join("bin").join(name));
    hidden
        .find(|path| path.is_file())
        .or_else(|| program(Prerequisite::Postgres, name))
}

/// A folder that `NOBODY` may use.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let open = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(folder.path(), open).expect("its folder");
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).expect("only root has namespaces here");
    folder
}

/// With its words in a file of its folder.
fn with_log<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .expect("a log");
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("open"))
        .stderr(log)
}

/// The same for a user without privileges.
fn unprivileged<'a>(command: &'a mut Command, folder: &Path) -> &'a mut Command {
    with_log(command, folder)
        .env("HOME", folder)
        .env("LC_ALL", "C")
        .uid(NOBODY)
        .gid(NOBODY)
}

/// Starts a server in the server's pod and waits until it listens.
fn serve(mesh: &Captured, folder: tempfile::TempDir, command: &mut Command, end: Signal) -> Server {
    let child = mesh.server.run(|| command.spawn()).expect("entered");
    let mut server = Server {
        child: child.expect("it starts"),
        end,
        _folder: folder,
    };
    wait_until("the server listens", || {
        let ended = server.child.try_wait().expect("a child");
        assert!(ended.is_none(), "{ended:?}: {}", log(&server));
        let there = || TcpStream::connect((Ipv4Addr::LOCALHOST, UNDECLARED)).is_ok();
        mesh.server.run(there).expect("entered")
    });
    server
}

fn log(server: &Server) -> String {
    std::fs::read_to_string(server._folder.path().join("log")).unwrap_or_default()
}

/// Asks the server in every mode, with a sidecar by the pod's and by the service's address and, where that is allowed,
/// without one; twice, since the first connection teaches.
fn in_every_mode(mesh: &Captured, ask: impl Fn(&Namespace, SocketAddr, &str)) {
    in_every_mode_counted(mesh, "istio_tcp_connections_opened_total", ask);
}

/// The same, where the server's sidecar counts it by this metric.
fn in_every_mode_counted(
    mesh: &Captured,
    metric: &str,
    ask: impl Fn(&Namespace, SocketAddr, &str),
) {
    for (mode, strangers) in [("STRICT", false), ("PERMISSIVE", true), ("DISABLE", true)] {
        mesh.set_mode(mode);
        for turn in 1..=2 {
            for address in [SERVER, VIP] {
                let what = format!("{mode}, to {address}, turn {turn}");
                ask(&mesh.client, (address, UNDECLARED).into(), &what);
            }
            if strangers {
                let what = format!("{mode}, without a sidecar, turn {turn}");
                ask(&mesh.world, (SERVER, UNDECLARED).into(), &what);
            }
        }
    }
    // It went through both, and was encrypted where it should be.
    let secured = [
        "reporter=\"destination\"",
        "connection_security_policy=\"mutual_tls\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/client\"",
    ];
    wait_until("connections are counted", || {
        let metrics = mesh.metrics(&mesh.server);
        series(&metrics, metric, &secured) >= Some(4.0)
    });
}

/// Runs a client of strangers' inside; it must succeed and say this.
fn run(inside: &Namespace, command: &mut Command, expected: &str, what: &str) {
    let output = inside.run(|| command.stdin(Stdio::null()).output());
    let output = output.expect("entered").expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains(expected),
        "{what}: {}\n{said}\n{complained}",
        output.status
    );
}

#[test]
fn redis_benchmark_runs_through() {
    let of = |name| program(Prerequisite::Redis, name);
    let (Some(server), Some(client)) = (of("redis-server"), of("redis-benchmark")) else {
        return;
    };
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    let mut command = Command::new(server);
    let port = UNDECLARED.to_string();
    command.args([
        "--port",
        &port,
        "--bind",
        "0.0.0.0",
        "--protected-mode",
        "no",
    ]);
    command.args(["--save", "", "--appendonly", "no"]);
    let folder = folder();
    let command = with_log(&mut command, folder.path());
    let _server = serve(&mesh, folder, command, Signal::KILL);
    in_every_mode(&mesh, |inside, to, what| {
        for pipelined in ["1", "16"] {
            let mut command = Command::new(&client);
            command.args([
                "-h",
                &to.ip().to_string(),
                "-p",
                &port,
                "-n",
                "500",
                "-c",
                "10",
            ]);
            command.args([
                "-P",
                pipelined,
                "-d",
                "1000",
                "-t",
                "ping,set,get,lrange_100",
                "--csv",
            ]);
            run(inside, &mut command, "LRANGE_100", what);
        }
    });
}

#[test]
fn the_mariadb_client_runs_through() {
    let of = |name| program(Prerequisite::Mariadb, name);
    let (Some(install), Some(server), Some(client)) =
        (of("mariadb-install-db"), of("mariadbd"), of("mariadb"))
    else {
        return;
    };
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    let folder = folder();
    let data = format!("--datadir={}", folder.path().join("data").display());
    let mut command = Command::new(install);
    command.args(["--no-defaults", "--skip-test-db", &data]);
    let made = unprivileged(&mut command, folder.path()).status();
    assert!(made.expect("it starts").success());
    let mut command = Command::new(server);
    command.args([
        "--no-defaults",
        "--skip-grant-tables",
        &data,
        "--socket=socket",
    ]);
    command.args([
        "--bind-address=0.0.0.0",
        "--pid-file=pid",
        "--innodb-flush-method=nosync",
    ]);
    command.arg(format!("--port={UNDECLARED}"));
    let command = unprivileged(&mut command, folder.path());
    let _server = serve(&mesh, folder, command, Signal::KILL);
    in_every_mode(&mesh, |inside, to, what| {
        let mut command = Command::new(&client);
        command.args(["--no-defaults", "--user=root", "--skip-column-names"]);
        command.arg(format!("--host={}", to.ip()));
        command.arg(format!("--port={}", to.port()));
        // A long answer, and one after it on the same connection.
        command.args([
            "-e",
            "select repeat('long', 500000); select concat('a', 6 * 7, 'z')",
        ]);
        run(inside, &mut command, "a42z", what);
    });
}

#[test]
fn pgbench_runs_through() {
    let (Some(init), Some(server), Some(client)) = (
        postgres("initdb"),
        postgres("postgres"),
        postgres("pgbench"),
    ) else {
        return;
    };
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    let folder = folder();
    let data = folder.path().join("data");
    let mut command = Command::new(init);
    command
        .args(["-U", "somebody", "-A", "trust", "--no-sync", "-D"])
        .arg(&data);
    let made = unprivileged(&mut command, folder.path()).status();
    assert!(made.expect("it starts").success());
    let trust = "host all all 0.0.0.0/0 trust\n";
    std::fs::write(data.join("pg_hba.conf"), trust).expect("written");
    let mut command = Command::new(server);
    command
        .arg("-D")
        .arg(&data)
        .args(["-p", &UNDECLARED.to_string(), "-c", "fsync=off"]);
    command.args(["-c", "listen_addresses=*", "-c", "unix_socket_directories="]);
    let command = unprivileged(&mut command, folder.path());
    let _server = serve(&mesh, folder, command, Signal::QUIT);
    let call = |to: SocketAddr| {
        let mut command = Command::new(&client);
        command.args(["-h", &to.ip().to_string(), "-p", &to.port().to_string()]);
        command.args(["-U", "somebody"]);
        command
    };
    let tables = ["-i", "-q", "postgres"];
    let mut command = call((SERVER, UNDECLARED).into());
    run(&mesh.client, command.args(tables), "", "its tables");
    in_every_mode(&mesh, |inside, to, what| {
        let rounds = ["-n", "-c", "4", "-t", "10", "-M", "prepared", "postgres"];
        let processed = "number of transactions actually processed: 40/40";
        run(inside, call(to).args(rounds), processed, what);
    });
}

/// Takes mail and forgets it: with the library for it where it is installed, else with the one that Python had until 3.12.
const MAIL_SERVER: &str = "
import sys
port = int(sys.argv[1])
try:
    from aiosmtpd.controller import Controller
    from aiosmtpd.handlers import Sink
    import threading
    Controller(Sink(), hostname='0.0.0.0', port=port).start()
    threading.Event().wait()
except ImportError:
    import warnings
    warnings.simplefilter('ignore')
    import smtpd, asyncore
    class Server(smtpd.SMTPServer):
        def process_message(self, *message, **more):
            return None
    Server(('0.0.0.0', port), None)
    asyncore.loop()
";

/// Two mails on one connection, one of them large.
const MAIL_CLIENT: &str = "
import smtplib, sys
with smtplib.SMTP(sys.argv[1], int(sys.argv[2]), timeout=20) as server:
    for size in (10, 500000):
        body = 'Subject: x\\r\\n\\r\\n' + ('y' * 70 + '\\r\\n') * (size // 72 + 1)
        server.sendmail('a@one.test', ['b@two.test'], body)
print('sent')
";

#[test]
fn mail_is_sent_through() {
    let Some(python) = program(Prerequisite::Python, "python3") else {
        return;
    };
    let library =
        "import importlib.util as u; exit(not (u.find_spec('aiosmtpd') or u.find_spec('smtpd')))";
    let found = Command::new(&python).args(["-c", library]).status();
    if !found.expect("it starts").success() {
        return skip(Prerequisite::PythonMail, "Python has no mail server");
    }
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    let mut command = Command::new(&python);
    command.args(["-c", MAIL_SERVER, &UNDECLARED.to_string()]);
    let folder = folder();
    let command = with_log(&mut command, folder.path());
    let _server = serve(&mesh, folder, command, Signal::KILL);
    in_every_mode(&mesh, |inside, to, what| {
        let mut command = Command::new(&python);
        command.args([
            "-c",
            MAIL_CLIENT,
            &to.ip().to_string(),
            &to.port().to_string(),
        ]);
        run(inside, &mut command, "sent", what);
    });
}

/// A forward proxy as its library writes it: answers in HTTP/1.0, one thread a tunnel.
const FORWARD_PROXY: &str = "
import http.server, socket, sys, threading
class Proxy(http.server.BaseHTTPRequestHandler):
    def do_CONNECT(self):
        host, port = self.path.rsplit(':', 1)
        with socket.create_connection((host, int(port)), 20) as far:
            self.send_response(200)
            self.end_headers()
            def back():
                while data := far.recv(65536):
                    self.connection.sendall(data)
                self.connection.shutdown(socket.SHUT_WR)
            thread = threading.Thread(target=back)
            thread.start()
            while data := self.rfile.read1(65536):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)
            thread.join()
http.server.ThreadingHTTPServer(('0.0.0.0', int(sys.argv[1])), Proxy).serve_forever()
";

#[test]
fn curl_tunnels_through_a_forward_proxy_that_nobody_declared() {
    let (Some(python), Some(curl)) = (
        program(Prerequisite::Python, "python3"),
        program(Prerequisite::Curl, "curl"),
    ) else {
        return;
    };
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    let web = listen(&mesh.world, (FAR, WEB));
    application::reflect(web);
    let mut command = Command::new(&python);
    command.args(["-c", FORWARD_PROXY, &UNDECLARED.to_string()]);
    let folder = folder();
    let command = with_log(&mut command, folder.path());
    let _server = serve(&mesh, folder, command, Signal::KILL);
    // A CONNECT is a request, whose answer may open a tunnel.
    in_every_mode_counted(&mesh, "istio_requests_total", |inside, to, what| {
        let mut command = Command::new(&curl);
        command.args(["-sS", "--max-time", "20", "--noproxy", "", "-p"]);
        command.args(["--proxy", &format!("http://{to}")]);
        command.arg(format!("http://{FAR}:{WEB}/through"));
        run(inside, &mut command, "GET /through HTTP/1.1", what);
    });
}

/// More than any buffer between the two ends.
const MUCH: usize = 3 * 1024 * 1024;

#[test]
fn a_raw_echo_brings_back_every_byte_and_the_end_of_them() {
    let Some(mesh) = Captured::start("STRICT", "") else {
        return;
    };
    let at = (Ipv4Addr::UNSPECIFIED, UNDECLARED);
    application::serve(listen(&mesh.server, at), |mut stream| {
        let mut back = stream.try_clone().expect("open");
        let _ = std::io::copy(&mut stream, &mut back);
        let _ = back.shutdown(Shutdown::Write);
    });
    in_every_mode(&mesh, |inside, to, what| {
        // Neither text nor any protocol, other bytes at every place.
        let sent: Vec<u8> = (0..MUCH)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let mut stream = connect(inside, to);
        stream.set_read_timeout(Some(PATIENCE)).expect("open");
        let mut writer = stream.try_clone().expect("open");
        let mut back = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                writer.write_all(&sent).expect("sent");
                writer.shutdown(Shutdown::Write).expect("open");
            });
            let read = stream.read_to_end(&mut back);
            assert!(read.is_ok(), "{what}: {read:?} after {} bytes", back.len());
        });
        assert!(back == sent, "{what}: {} bytes came back", back.len());
    });
}
