//! The guide for users of Istio: its resources, with the findings that it promises.

use crate::mesh::page_commands::End::{Failure, Success};
use crate::mesh::page_commands::Page;

#[test]
fn a_user_of_istio_sees_what_is_stricter_and_what_is_refused_by_the_guide() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut page = Page::open_here("docs/guides/from-istio.md", folder.path().to_owned());
    page.run(&[
        ("mkdir exported", Success("")),
        ("cat >exported/shop.yaml", Success("")),
        ("cat >exported/policy.yaml", Success("")),
        ("cat >exported/tuning.yaml", Success("")),
        (
            "voile analyze exported",
            Failure("policy.yaml:7:11: error[V0343]"),
        ),
        (
            "voile analyze exported/tuning.yaml",
            Failure("error[V0106]: EnvoyFilter `tuning`"),
        ),
        ("voile explain exported", Failure("DENIED by Deployment")),
        ("voile explain-code V0343", Success("node proxy")),
        ("rm exported/tuning.yaml", Success("")),
        ("sed -i", Success("")),
        ("cat >exported/policy.yaml", Success("")),
        ("voile analyze exported", Success("0 errors, 0 warnings")),
        (
            "voile explain exported",
            Success("ALLOWED by waypoint shop/gate"),
        ),
    ]);
    page.ends();
}
