//! Test of `examples/policies/README.md`: sends the request of every table row to the folder as it stands, and makes the
//! edits that the page names.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::mesh::{Process, exchange, wait_until};
use crate::up::{Up, example};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The words of a command as a shell would read them: double quotes, and `$(cat FILE)` with a file of the repository.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quoted, mut rest) = (false, command);
    while let Some(next) = rest.chars().next() {
        if let Some((file, after)) = rest
            .strip_prefix("$(cat ")
            .and_then(|rest| rest.split_once(')'))
        {
            let text = std::fs::read_to_string(root().join(file)).expect("a file of the example");
            words.last_mut().expect("one").push_str(text.trim_end());
            rest = after;
            continue;
        }
        match next {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().expect("one").push(other),
        }
        rest = &rest[next.len_utf8()..];
    }
    words
}

/// Rows of the tables: commands of this program, and the promised result.
fn rows(program: &str) -> Vec<(String, String)> {
    rows_of("policies", program)
}

/// The same of another example.
pub(crate) fn rows_of(example: &str, program: &str) -> Vec<(String, String)> {
    let page = std::fs::read_to_string(root().join("examples").join(example).join("README.md"));
    let page = page.expect("the example's page");
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let command = cells.next()?.strip_suffix('`')?;
        let promised = cells.next()?.trim_end_matches(" |");
        command
            .starts_with(program)
            .then(|| (command.to_owned(), promised.to_owned()))
    };
    let rows: Vec<_> = page.lines().filter_map(row).collect();
    assert!(rows.len() > 4, "{rows:?}");
    rows
}

/// The status that this `curl` would see; where the page names a port, what was published for it is asked.
pub(crate) fn status(command: &str, published: &BTreeMap<u16, SocketAddr>) -> u16 {
    let words = words(command);
    let mut words = words.iter().map(String::as_str).skip(1);
    let (mut method, mut headers, mut url) = ("GET", String::new(), "");
    while let Some(word) = words.next() {
        match word {
            "-X" => method = words.next().expect("a method"),
            "-H" => headers += &format!("{}\r\n", words.next().expect("a header")),
            "--path-as-is" => {}
            word => url = word,
        }
    }
    let rest = url.strip_prefix("http://127.0.0.1:").expect("a door");
    let (port, path) = rest.split_once('/').expect("a path");
    let at = published[&port.parse().expect("a port")];
    if !headers.contains("Host:") {
        headers += &format!("Host: {at}\r\n");
    }
    let request = format!("{method} /{path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
    exchange(at, request.as_bytes()).map_or(0, |answer| answer.status)
}

#[test]
fn the_policies_example_answers_as_its_page_says_and_follows_the_edits_it_names() {
    let mut up = Up::start(|folder| example("policies", folder), &[]);
    let published = up.ready();
    let published = [(30085, "shop"), (30086, "office"), (30087, "stranger")]
        .map(|(port, name)| (port, published[&format!("policies/{name}")]));
    let published = BTreeMap::from(published);
    let becomes = |command: &str, wanted: u16| {
        wait_until(&format!("`{command}` is answered {wanted}"), || {
            status(command, &published) == wanted
        });
    };
    for (command, promised) in rows("curl ") {
        becomes(&command, promised.parse().expect("a status"));
    }
    let shop = "policies.shop-0.sidecar";
    wait_until("what was tried out is logged", || {
        up.log(shop).contains("dry run: would be denied")
    });

    let ask = |path: &str| format!("curl http://127.0.0.1:30085{path}");
    up.edit(
        "policies.yaml",
        "action: CUSTOM\n  provider:\n    name: guard\n",
        "action: DENY\n",
    );
    becomes(&ask("/lab/open"), 403);
    up.edit(
        "policies.yaml",
        "  annotations:\n    istio.io/dry-run: \"true\"\n",
        "",
    );
    becomes(&ask("/goods/old/radio"), 403);
    up.edit("policies.yaml", "action: DENY", "actoin: DENY");
    wait_until("the mistake is told with its place", || {
        let said = up.text("err");
        said.contains("policies.yaml:") && said.contains("actoin")
    });
    becomes(&ask("/goods/cellar/wine"), 403);
    becomes(&ask("/goods/tea"), 200);
}

#[test]
fn the_policies_example_is_explained_as_its_page_says() {
    for (command, promised) in rows("voile ") {
        let output = Process::output(|voile| {
            voile
                .current_dir(root())
                .args(words(&command).iter().skip(1));
        });
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        for words in promised.split('`').skip(1).step_by(2) {
            assert!(said.contains(words), "{command}: {words}: {said}");
        }
        assert_ne!(output.status.code(), Some(2), "{command}: {said}");
    }
}
