//! The tutorial for one machine, with an application that is not ours.

use crate::mesh::page_commands::End::{Failure, Success};
use crate::mesh::page_commands::Page;
use crate::up::netns::start;
use crate::up::pair;

#[test]
fn a_stranger_s_application_is_in_a_mesh_by_the_tutorial() {
    // A machine without namespaces skips it.
    let Some(possible) = start(pair, None) else {
        return;
    };
    drop(possible);
    let folder = tempfile::tempdir().expect("a folder");
    let mut page = Page::open_here("docs/tutorials/local.md", folder.path().to_owned());
    page.run(&[
        ("mkdir shop", Success("")),
        ("cat >shop/app.yaml", Success("")),
        ("cat >shop/client.yaml", Success("")),
        ("voile analyze", Success("0 errors")),
        ("voile up shop --quiet --web", Success("")),
        ("until grep", Success("ready after")),
        ("curl -s -o /dev/null", Success("200")),
        ("voile status", Success("3 proxies")),
        ("voile edges", Success("shop/web")),
        ("cat >shop/policy.yaml", Success("")),
        ("until grep", Success("the edit is in force")),
        ("curl -s", Success("access denied")),
        ("voile who-can", Success("/ns/shop/sa/client")),
        ("sed -i", Success("")),
        (
            "voile analyze",
            Failure("did you mean `AuthorizationPolicy`?"),
        ),
        ("curl -s", Success("access denied")),
        ("voile stop", Success("has ended")),
    ]);
    page.ends();
}
