//! The outside of an enclosure: keeps the terminal's signals and the host's sockets, and serves the inside's requests
//! that need the host, until the inside ends.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::EnclosureError;
use super::signals::{self, BlockedSignals};
use super::socket::{SocketKind, SocketMessage, receive, send, send_with};
use crate::child::{ChildExit, DROP_GRACE, Output, Spec, SupervisedChild};

/// Exit code after a signal, less the signal's number: the shells' way.
const SIGNALLED: i32 = 128;

/// The outside of an enclosure, with its remaining work.
#[derive(Debug)]
pub struct OutsideSetup {
    init: Pid,
    socket: OwnedFd,
    signals: OwnedFd,
    blocked: BlockedSignals,
    command: Option<SupervisedChild>,
}

impl OutsideSetup {
    /// Waits until the inside is set up, or says why it is not.
    pub(super) fn attend(
        init: Pid,
        socket: OwnedFd,
        blocked: BlockedSignals,
    ) -> Result<Self, EnclosureError> {
        let set_up = match receive(&socket) {
            Ok((SocketMessage::Ready, _)) => {
                blocked.descriptor().map_err(|error| error.to_string())
            }
            Ok((SocketMessage::Failed(reason), _)) => Err(reason),
            Ok((word, _)) => Err(format!("unexpected {word:?}")),
            Err(_) => Err("the process ended during its setup".to_owned()),
        };
        match set_up {
            Ok(signals) => Ok(Self {
                init,
                socket,
                signals,
                blocked,
                command: None,
            }),
            Err(reason) => {
                let _ = kill_process(init, Signal::KILL);
                let _ = waitpid(Some(init), WaitOptions::empty());
                blocked.release();
                Err(EnclosureError::Inside(reason))
            }
        }
    }

    /// Attends to the inside until it ends; returns its exit code.
    pub fn serve(mut self) -> u8 {
        let mut talks = true;
        loop {
            let mut wait = vec![PollFd::new(&self.signals, PollFlags::IN)];
            if talks {
                wait.push(PollFd::new(&self.socket, PollFlags::IN));
            }
            let polled = poll(&mut wait, None);
            let said = wait.get(1).is_some_and(|fd| !fd.revents().is_empty());
            drop(wait);
            if polled.is_err() {
                continue; // a signal that is not among ours
            }
            while let Some(signal) = signals::next(&self.signals) {
                if signal != Signal::CHILD.as_raw()
                    && let Some(signal) = Signal::from_named_raw(signal)
                {
                    let _ = kill_process(self.init, signal);
                }
            }
            if let Some(code) = self.ended() {
                self.blocked.release();
                return code;
            }
            if said {
                talks = self.listen_to().is_ok();
            }
            self.look_after_command();
        }
    }

    fn ended(&mut self) -> Option<u8> {
        let status = match waitpid(Some(self.init), WaitOptions::NOHANG) {
            Ok(None) => return None,
            Ok(Some((_, status))) => status,
            Err(_) => return Some(1),
        };
        let signalled = || SIGNALLED + status.terminating_signal().unwrap_or(0);
        let code = status.exit_status().unwrap_or_else(signalled);
        Some(u8::try_from(code).unwrap_or(1))
    }

    fn listen_to(&mut self) -> io::Result<()> {
        let (word, _) = receive(&self.socket)?;
        match word {
            SocketMessage::Listen(address) => self.give(TcpListener::bind(address)),
            SocketMessage::Open(kind, v6) => self.give(open(kind, v6)),
            SocketMessage::Run(command, variables) => self.run(&command, variables),
            SocketMessage::Stop => {
                if let Some(command) = &mut self.command {
                    command.stop(DROP_GRACE);
                }
                Ok(())
            }
            // Nothing else is said by the inside.
            _ => Ok(()),
        }
    }

    fn give(&self, made: io::Result<impl AsFd>) -> io::Result<()> {
        match made {
            Ok(socket) => {
                let word = SocketMessage::Listening(Ok(()));
                send_with(&self.socket, &word, Some(socket.as_fd()))
            }
            Err(error) => {
                let code = error.raw_os_error().unwrap_or(libc::EIO);
                send(&self.socket, &SocketMessage::Listening(Err(code)))
            }
        }
    }

    fn run(&mut self, command: &str, variables: Vec<(String, String)>) -> io::Result<()> {
        let mut shell = Spec::new("once-ready", "/bin/sh")
            .args(["-c", command])
            .stdout(Output::Inherit)
            .stderr(Output::Inherit);
        for (name, value) in variables {
            shell = shell.env(name, value);
        }
        match shell.start() {
            Ok(child) => self.command = Some(child),
            Err(error) => {
                eprintln!("voile up: {error}");
                send(&self.socket, &SocketMessage::Ended(127))?;
            }
        }
        Ok(())
    }

    fn look_after_command(&mut self) {
        if let Some(exit) = self.command.as_mut().and_then(SupervisedChild::try_exit) {
            self.command = None;
            let code = match exit {
                ChildExit::Code(code) => u8::try_from(code).unwrap_or(1),
                ChildExit::Signal(_) => 1,
            };
            let _ = send(&self.socket, &SocketMessage::Ended(code));
        }
    }
}

fn open(kind: SocketKind, v6: bool) -> io::Result<OwnedFd> {
    let family = match v6 {
        true => AddressFamily::INET6,
        false => AddressFamily::INET,
    };
    let kind = match kind {
        SocketKind::Stream => SocketType::STREAM,
        SocketKind::Datagrams => SocketType::DGRAM,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(family, kind, flags, None)?)
}
