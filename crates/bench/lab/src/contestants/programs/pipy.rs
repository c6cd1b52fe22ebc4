//! Pipy as two sidecars, from the committed scripts in `benchmarks/peers/pipy/`. It keeps no count of requests, so the path is proven by
//! the capture on its hops.

use std::net::SocketAddr;
use std::path::Path;

use voile_host::child::SupervisedChild;
use voile_host::ready::Probe;

use crate::contestants::listeners::fill;
use crate::contestants::pair::{PairSide, SidecarProgram, Values, write};
use crate::find;
use crate::shared_processes::Lab;

const CLIENT_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/pipy/client.js");
const SERVER_TEMPLATE: &str = include_str!("../../../../../../benchmarks/peers/pipy/server.js");
const NAME: &str = "pipy";

/// Pipy as it was found.
pub(crate) struct Pipy(find::PeerProgram);

impl Pipy {
    pub(crate) fn new(found: find::PeerProgram) -> Self {
        Self(found)
    }
}

fn script(side: PairSide, values: &Values) -> Result<String, String> {
    let template = match side {
        PairSide::Client => CLIENT_TEMPLATE,
        PairSide::Server => SERVER_TEMPLATE,
    };
    fill(template, values)
}

impl SidecarProgram for Pipy {
    const NET: u8 = 15;
    /// Pipy counts nothing that the lab could read.
    type Page = ();

    fn name(&self) -> &str {
        NAME
    }

    fn launch(
        &self,
        lab: &Lab<'_>,
        folder: &Path,
        side: PairSide,
        values: &Values,
        _epoch: u32,
    ) -> Result<(SupervisedChild, ()), String> {
        let name = format!("{NAME}-{}", side.word());
        let path = write(
            folder,
            &format!("{}.js", side.word()),
            &script(side, values)?,
        )?;
        let spec = lab
            .process(side.role(), &name, &self.0.path)?
            .arg(format!("--threads={}", lab.workers))
            .args(["--reuse-port", "--no-graph", "--log-level=error"])
            .arg(path);
        Ok((spec.start().map_err(|e| e.to_string())?, ()))
    }

    fn probe(_page: &(), listener: SocketAddr) -> Probe {
        Probe::Tcp(listener)
    }

    fn carries(&self, protocol: &str) -> bool {
        ["http1", "tcp"].contains(&protocol)
    }

    fn count(&self, _page: &(), _protocol: &str) -> Result<Option<u64>, String> {
        Ok(None)
    }

    fn version(&self) -> String {
        self.0.version.clone()
    }

    fn terms(&self) -> Vec<String> {
        vec![
            "its scripts were written from its documentation and never tried by their authors: check its proof of path first"
                .to_owned(),
            "does less: static configuration, no control plane, certificates from files, no metrics".to_owned(),
            "does less: cannot read SPIFFE URIs; it verifies the peer's certificate chain and its common name instead"
                .to_owned(),
            "tuned: keep-alive upstream, one upstream connection for each downstream connection; logs off".to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that a pair's listeners fill in.
    fn values() -> Values {
        let mut values = Values::new();
        for protocol in ["", "TCP_", "GRPC_"] {
            for port in [
                "PLAIN_PORT",
                "TLS_PORT",
                "DIRECT_PORT",
                "STAGE_PORT",
                "SERVER_PLAIN_PORT",
                "SERVER_TLS_PORT",
                "SERVER_STAGE_PORT",
            ] {
                values.push((format!("{protocol}{port}"), format!("<{protocol}{port}>")));
            }
        }
        for name in [
            "CLIENT_ADDRESS",
            "SERVER_ADDRESS",
            "ECHO_ADDRESS",
            "ECHO_PORT",
            "TCP_ECHO_PORT",
            "CLIENT_CERTIFICATE",
            "CLIENT_KEY",
            "SERVER_CERTIFICATE",
            "SERVER_KEY",
            "ROOT",
        ] {
            values.push((name.to_owned(), format!("<{name}>")));
        }
        values
    }

    #[test]
    fn each_way_has_a_listener_and_what_is_sealed_is_verified_on_both_sides() {
        let client = script(PairSide::Client, &values()).expect("filled");
        for way in [
            "relayHTTP('<CLIENT_ADDRESS>:<PLAIN_PORT>', '<SERVER_ADDRESS>:<SERVER_PLAIN_PORT>')",
            "relayHTTP('<CLIENT_ADDRESS>:<DIRECT_PORT>', '<ECHO_ADDRESS>:<ECHO_PORT>')",
            "sealedHTTP('<CLIENT_ADDRESS>:<TLS_PORT>', '<SERVER_ADDRESS>:<SERVER_TLS_PORT>')",
            "sealedTCP('<CLIENT_ADDRESS>:<TCP_TLS_PORT>', '<SERVER_ADDRESS>:<TCP_SERVER_TLS_PORT>')",
            "verify: isServer",
        ] {
            assert!(client.contains(way), "{way}:\n{client}");
        }
        let server = script(PairSide::Server, &values()).expect("filled");
        assert_eq!(server.matches(".acceptTLS(tls)").count(), 2);
        assert!(server.contains("verify: isClient") && server.contains("name === 'client'"));
        for text in [client, server] {
            let opened = |c| text.matches(c).count();
            assert_eq!((opened('('), opened('{')), (opened(')'), opened('}')));
        }
    }
}
