//! The services that both proxies ask, over gRPC and over HTTP: they do what a request's `x-ask` wishes and keep what they were told.

use std::io::{BufReader, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};

use super::super::authorizer::{Authorizer, http};
use super::super::free;
use super::drawn::Services;
use super::{compared, ordered};
use crate::mesh::application;

/// Both of them.
pub(crate) struct Both {
    grpc: Authorizer,
    heard: Arc<Mutex<Vec<Question>>>,
}

/// Parts of a question that are compared: method and path, host, body, fields.
pub(crate) type Question = Vec<String>;

impl Both {
    pub(crate) fn start() -> (Self, Services) {
        let listeners = [free(), free()];
        let places = listeners.each_ref().map(TcpListener::local_addr);
        let places = places.map(|at| at.expect("an address"));
        let [grpc, over_http] = listeners;
        let both = Self {
            grpc: Authorizer::start(grpc),
            heard: Arc::default(),
        };
        let kept = Arc::clone(&both.heard);
        application::serve(over_http, move |stream| {
            let mut reader = BufReader::new(stream);
            while let Some((head, body)) = application::read_request(&mut reader) {
                let answer = answer(field(&head, "x-ask"));
                let mut asked = kept.lock().unwrap_or_else(PoisonError::into_inner);
                asked.push(question(&head, &body));
                drop(asked);
                if reader.get_mut().write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        (both, places)
    }

    /// The questions since this was called last.
    pub(crate) fn take(&self) -> Vec<Question> {
        let over_grpc = self.grpc.take().into_iter().map(|asked| {
            let asked = http(&asked);
            let fields = asked.headers.iter();
            let fields: String = fields
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect();
            let first = format!("{} {} {}", asked.method, asked.path, asked.protocol);
            let host = &asked.host;
            question(
                &format!("{first}\r\nhost: {host}\r\n{fields}\r\n"),
                &asked.body,
            )
        });
        let mut all: Vec<Question> = over_grpc.collect();
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        all.append(&mut heard);
        all
    }
}

fn field<'a>(head: &'a str, wanted: &str) -> &'a str {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    found.map_or("", |(_, value)| value.trim())
}

fn question(head: &str, body: &str) -> Question {
    let mut all = vec![
        ordered(head.lines().next().unwrap_or_default()),
        format!("host: {}", field(head, "host")),
        body.to_owned(),
    ];
    all.extend(compared(head).into_iter().skip(1));
    all
}

/// Answer to a wish over HTTP; a yes to `change` amends the answer, too.
fn answer(wish: &str) -> String {
    let written = wish.strip_prefix("write ");
    let (status, fields) = match (wish, written.and_then(|it| it.split_once('='))) {
        (_, Some((name, value))) => ("200 OK", format!("{name}: {value}\r\n")),
        ("deny", _) => ("403 No", "x-why: rain\r\nx-other: 1\r\n".to_owned()),
        ("page", _) => ("302 Away", "location: https://login.test/\r\n".to_owned()),
        ("fail", _) => ("500 No", String::new()),
        ("change", _) => {
            let remove = "x-envoy-auth-headers-to-remove: authorization";
            ("200 OK", format!("{remove}\r\nx-seen: yes\r\n"))
        }
        _ => ("200 OK", String::new()),
    };
    let body = match wish {
        "deny" => "rain",
        "page" => "<p>log in</p>",
        _ => "",
    };
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{fields}content-length: {length}\r\n\r\n{body}")
}
