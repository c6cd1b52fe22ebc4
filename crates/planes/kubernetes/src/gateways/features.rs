//! The features of Gateway API that GatewayClasses claim, by the names of the conformance suite. The suite's runs
//! (tests/cluster/conformance) claim the same, and docs/conformance has their reports.

/// Features of gateways, in alphabetical order.
pub(super) const GATEWAY_FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
];

/// Features of the mesh, in alphabetical order.
pub(super) const MESH_FEATURES: &[&str] = &[
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteParentRefPort",
    "HTTPRouteResponseHeaderModification",
    "Mesh",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
    "ReferenceGrant",
];

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{GATEWAY_FEATURES, MESH_FEATURES};

    /// Names in one of the lists of a report's extended features.
    fn names<'r>(profile: &'r Value, list: &str) -> Vec<&'r str> {
        let names = profile["extended"][list].as_array();
        names
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    #[track_caller]
    fn agrees(report: &str, claims: &[&str], wanted: &[&str]) {
        let report: Value = serde_saphyr::from_str(report).expect("YAML of the suite");
        let profiles = report["profiles"].as_array().expect("profiles");
        let mut names_of_profiles: Vec<&str> = Vec::new();
        for profile in profiles {
            let name = profile["name"].as_str().expect("a name");
            assert_eq!(profile["core"]["result"], "success", "{name}");
            let extended = &profile["extended"];
            assert!(
                extended.is_null() || extended["result"] == "success",
                "{name}"
            );
            for feature in names(profile, "supportedFeatures") {
                assert!(claims.contains(&feature), "{name} ran with {feature}");
            }
            for feature in names(profile, "unsupportedFeatures") {
                assert!(!claims.contains(&feature), "{name} ran without {feature}");
            }
            names_of_profiles.push(name);
        }
        names_of_profiles.sort_unstable();
        assert_eq!(names_of_profiles, wanted);
        assert!(claims.is_sorted(), "the API wants them sorted");
    }

    #[test]
    fn the_conformance_suite_ran_with_these_claims_and_passed() {
        let gateway = include_str!("../../../../../docs/conformance/gateway.yaml");
        let profiles = ["GATEWAY-GRPC", "GATEWAY-HTTP", "GATEWAY-TCP", "GATEWAY-TLS"];
        agrees(gateway, GATEWAY_FEATURES, &profiles);
        let mesh = include_str!("../../../../../docs/conformance/mesh.yaml");
        agrees(mesh, MESH_FEATURES, &["MESH-GRPC", "MESH-HTTP"]);
        // A waypoint has one set of routes for all of its callers.
        let ambient = include_str!("../../../../../docs/conformance/ambient.yaml");
        let claims = MESH_FEATURES.iter().copied();
        let claims: Vec<&str> = claims.filter(|one| *one != "MeshConsumerRoute").collect();
        agrees(ambient, &claims, &["MESH-GRPC", "MESH-HTTP"]);
    }
}
