//! Test of `examples/egress/README.md`: sends the request of every table row before and after the step that it shows, and makes
//! the edits.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::examples::policies::{rows_of, status};
use crate::mesh::wait_until;
use crate::up::{Up, example};

/// The commands between the fences of the page that make the bank known, for another folder and certificate.
fn step(folder: &Path, certificate: &Path) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/egress/README.md");
    let page = fs::read_to_string(page).expect("the example's page");
    let mut fenced = page.split("```\n").filter(|text| text.starts_with("cat >"));
    let step = fenced.next().expect("a step");
    step.replace("examples/egress", &folder.to_string_lossy())
        .replace("/tmp/bank.crt", &certificate.to_string_lossy())
}

#[test]
fn the_egress_example_answers_as_its_page_says_and_follows_the_edits_it_names() {
    let own = tempfile::tempdir().expect("a folder");
    // As /tmp is: root's applications are other users.
    fs::set_permissions(own.path(), fs::Permissions::from_mode(0o777)).expect("opened");
    let certificate = own.path().join("bank.crt");
    let fill = |folder: &Path| {
        example("egress", folder);
        let world = folder.join("world.yaml");
        let text = fs::read_to_string(&world).expect("the world");
        let text = text.replace("/tmp/bank.crt", &certificate.to_string_lossy());
        fs::write(world, text).expect("written");
    };
    let mut up = Up::start(fill, &[]);
    let published = up.ready();
    let published = BTreeMap::from([(30095, published["egress/egress"])]);
    let becomes = |command: &str, wanted: u16| {
        wait_until(&format!("`{command}` is answered {wanted}"), || {
            status(command, &published) == wanted
        });
    };
    let rows = rows_of("egress", "curl ");
    let (last, first) = rows.split_last().expect("rows");
    for (command, promised) in first {
        becomes(command, promised.parse().expect("a status"));
    }
    let folder = up.file("");
    let ran = Command::new("sh")
        .args(["-c", &step(&folder, &certificate)])
        .status();
    assert!(ran.expect("a shell").success());
    becomes(&last.0, last.1.parse().expect("a status"));
    assert!(!up.text("err").contains("error["), "{}", up.text("err"));
    let named = "credentialName: bank-authority";
    up.edit("bank.yaml", named, &format!("{named}, sni: other.example"));
    becomes(&last.0, 503);
    fs::remove_file(up.file("list.yaml")).expect("removed");
    becomes(&first[0].0, 503);
}
