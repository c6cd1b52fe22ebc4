//! Every code that a cross-resource check can give. Codes of reading and checking one resource are in `voile_model::codes`.

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal;)*) => {
        $($(#[doc = $doc])+ pub const $name: &str = $code;)*

        /// Code and meaning, in order.
        pub const TABLE: &[(&str, &str)] = &[$(($code, concat!($($doc),+).trim_ascii_start())),*];
    };
}

codes! {
    /// A Service or ServiceEntry selects no workload.
    SERVICE_SELECTS_NOTHING = "V0301";
    /// A Sidecar selects no workload.
    SIDECAR_SELECTS_NOTHING = "V0302";
    /// An egress host names no service that can be seen.
    UNKNOWN_EGRESS_HOST = "V0303";
    /// The `targetPort` of a service is a name that no container port has.
    UNKNOWN_TARGET_PORT = "V0304";
    /// `portLevelMtls` without a selector is ignored.
    PORT_LEVEL_WITHOUT_SELECTOR = "V0305";
    /// `portLevelMtls` names a port that no selected workload serves.
    PORT_LEVEL_UNSERVED = "V0306";
    /// A PeerAuthentication of the root namespace with a selector is ignored.
    SELECTOR_IN_ROOT = "V0307";
    /// Several Sidecars are for the same workloads; one is ignored.
    TWO_SIDECARS = "V0308";
    /// A Pod's service account is not declared.
    UNKNOWN_SERVICE_ACCOUNT = "V0309";
    /// Two workloads have one address.
    SAME_ADDRESS = "V0310";
    /// Two listeners, or a listener and the application, want one address and port.
    LISTENER_CLASH = "V0311";
    /// STRICT applies to a workload without a sidecar or node proxy to enforce it.
    STRICT_WITHOUT_SIDECAR = "V0312";
    /// An application with a sidecar that can only run in namespaces, not on loopback addresses.
    NAMESPACES_ONLY = "V0313";
    /// A PeerAuthentication selects no workload.
    POLICY_SELECTS_NOTHING = "V0314";
    /// Several PeerAuthentications are for the same workloads; only the oldest counts.
    TWO_POLICIES = "V0315";
    /// A Telemetry names a provider that MeshConfig does not have, or one that cannot take it.
    UNKNOWN_PROVIDER = "V0317";
    /// Several Telemetries are for one whole namespace; only the oldest counts.
    TWO_TELEMETRIES = "V0318";
    /// A Telemetry selects no workload.
    TELEMETRY_SELECTS_NOTHING = "V0319";
    /// A DestinationRule is for no service of its namespace, or no client obeys it.
    DESTINATION_WITHOUT_SERVICE = "V0320";
    /// `h2UpgradePolicy` of a DestinationRule is for a port that is not declared `http`.
    UPGRADE_OF_OTHERS = "V0321";
    /// An AuthorizationPolicy selects no workload.
    AUTHORIZATION_SELECTS_NOTHING = "V0322";
    /// An AuthorizationPolicy selects a workload without a sidecar or node proxy to enforce it.
    AUTHORIZATION_WITHOUT_SIDECAR = "V0323";
    /// An AuthorizationPolicy targets (`targetRefs`) a resource without a gateway or waypoint; no other proxy obeys it, as in Istio.
    TARGETS_NOT_ENFORCED = "V0324";
    /// A rule with HTTP conditions holds for a port without HTTP: ALLOW allows nothing, other rules ignore them.
    HTTP_ON_TCP = "V0325";
    /// A rule matches the caller's identity, and plaintext callers have none: a DENY rule does not deny them.
    NO_IDENTITY = "V0326";
    /// An ALLOW policy without rules is the only policy that decides about a workload: it denies all requests.
    ALLOWS_NOTHING = "V0327";
    /// A rule names a port that no workload of its policy serves.
    AUTHORIZATION_PORT_UNSERVED = "V0328";
    /// A CUSTOM policy names a provider that MeshConfig does not have, or one that cannot decide.
    UNKNOWN_AUTHORIZER = "V0329";
    /// CUSTOM policies of one workload name several providers: what they match is denied.
    SEVERAL_AUTHORIZERS = "V0330";
    /// A rule matches claims of a token, but no token is verified where the rule applies.
    NO_TOKEN = "V0331";
    /// A value that no request can have: a method in lower case, a path with a query.
    NEVER_MATCHES = "V0332";
    /// A rule matches the original client's address, but no proxy in front is trusted to report it.
    NO_TRUSTED_PROXY = "V0333";
    /// A RequestAuthentication selects no workload.
    TOKENS_SELECT_NOTHING = "V0334";
    /// A RequestAuthentication selects a workload without a sidecar to enforce it.
    TOKENS_WITHOUT_SIDECAR = "V0335";
    /// A RequestAuthentication targets (`targetRefs`) a resource without a gateway or waypoint; no other proxy obeys it, as in Istio.
    TOKEN_TARGETS_NOT_ENFORCED = "V0336";
    /// Keys of `jwks` are unusable, or contain private parts.
    BAD_KEYS = "V0337";
    /// A RequestAuthentication applies, but no policy requires a token: requests without one pass.
    TOKEN_NOT_REQUIRED = "V0338";
    /// Keys are fetched over plaintext HTTP: an attacker on the path can forge tokens.
    KEYS_IN_PLAINTEXT = "V0339";
    /// The service of a CUSTOM policy's provider does not exist in the mesh, or has no such port: requests that the policy matches are denied.
    AUTHORIZER_UNREACHABLE = "V0340";
    /// A CUSTOM policy with an HTTP provider applies to a port that is not HTTP: connections that it matches are denied.
    AUTHORIZER_KNOWS_HTTP = "V0341";
    /// A rule requires a token of an issuer that no RequestAuthentication there accepts.
    UNKNOWN_ISSUER = "V0342";
    /// A policy applies to a workload behind a node proxy and has conditions that a node proxy cannot evaluate.
    NODE_PROXY_CANNOT_TELL = "V0343";
    /// A RequestAuthentication or RateLimit applies to a port that declares no protocol: traffic that is not HTTP is denied there.
    REQUESTS_ONLY = "V0344";
    /// A RequestAuthentication selects a workload with a port declared TCP or TLS: no token is verified there.
    TOKENS_ON_TCP = "V0345";
    /// A container runs as the user that is the proxy's.
    PROXY_USER = "V0346";
    /// A container has the image `auto`, but its Pod has no sidecar injection.
    PROXY_NOT_INJECTED = "V0347";
    /// A policy's selector selects Pods of a Gateway API Gateway, where Istio uses `targetRefs`.
    SELECTOR_OF_GATEWAY = "V0348";
    /// A Sidecar selects only workloads with a node proxy and without a sidecar: it has no effect.
    SIDECAR_OF_NOBODY = "V0349";
    /// A RateLimit selects no workload.
    RATE_LIMIT_SELECTS_NOTHING = "V0350";
    /// A RateLimit selects a workload without a sidecar to enforce it.
    RATE_LIMIT_WITHOUT_SIDECAR = "V0351";
    /// A rule of a RateLimit is unreachable: an earlier rule matches all its requests.
    SHADOWED_LIMIT = "V0352";
    /// More RateLimits select a workload than its proxy supports.
    TOO_MANY_LIMITS = "V0353";
    /// The rate limit service of a RateLimit does not exist.
    UNKNOWN_LIMITER = "V0354";
    /// No proxy runs a HealthCheck.
    NOBODY_CHECKS = "V0355";
    /// A HealthCheck is for a host, or a port of it, that no service has.
    UNKNOWN_CHECKED_HOST = "V0356";
    /// A HealthCheck has no effect where a gateway passes TLS through (AUTO_PASSTHROUGH).
    UNREAD_CHECK = "V0357";
    /// An EndpointSlice or Endpoints has no Service that uses it: the Service does not exist, or has a selector.
    SLICE_NOT_TAKEN = "V0360";
    /// An endpoint of an EndpointSlice is never called.
    ENDPOINT_NOT_CALLED = "V0361";
    /// A port of an EndpointSlice has a name that no port of its Service has: it is never called.
    SLICE_PORT_UNKNOWN = "V0362";
    /// A ServiceEntry of resolution DYNAMIC_DNS has a port whose connections carry no host name: they have no destination.
    HOST_NOT_NAMED = "V0363";
    /// A route has a destination host that no service has.
    UNKNOWN_ROUTE_HOST = "V0401";
    /// A route has a destination subset that no DestinationRule of its host declares.
    UNKNOWN_SUBSET = "V0402";
    /// A subset of a DestinationRule selects no workload of its service.
    EMPTY_SUBSET = "V0403";
    /// Two VirtualServices have routes for the same host and gateway; Istio does not define which applies.
    CONFLICTING_ROUTES = "V0404";
    /// A route is unreachable: an earlier route matches all its requests.
    SHADOWED_ROUTE = "V0405";
    /// A route names a gateway or listener that does not exist.
    UNKNOWN_GATEWAY = "V0406";
    /// No host of a route matches its gateway.
    HOST_NOT_IN_GATEWAY = "V0407";
    /// A Gateway selects no workload: nothing listens.
    GATEWAY_SELECTS_NOTHING = "V0408";
    /// A Gateway has a port that no Service of its workloads has: the port is unreachable.
    GATEWAY_PORT_UNSERVED = "V0409";
    /// Two servers of Gateways want one port and host of the same workloads.
    CONFLICTING_GATEWAYS = "V0410";
    /// A referenced credential does not exist or lacks a required key.
    UNKNOWN_CREDENTIAL = "V0411";
    /// A DestinationRule makes clients use a protocol that the service's workloads reject.
    MUTUAL_TLS_CONTRADICTION = "V0412";
    /// A route names no port of a destination service with several ports.
    AMBIGUOUS_PORT = "V0413";
    /// A route names a port that its destination service does not have.
    UNKNOWN_ROUTE_PORT = "V0414";
    /// A port of a service declares no protocol: proxies detect it from the first bytes.
    PORT_WITHOUT_PROTOCOL = "V0415";
    /// Services declare different protocols for one port of a workload.
    PORT_PROTOCOLS_DIFFER = "V0416";
    /// A service has no endpoints: it has neither a selector nor declared endpoints.
    NO_ENDPOINTS = "V0417";
    /// One host is declared twice, and differently, for the same clients.
    SAME_HOST_DIFFERENTLY = "V0418";
    /// Two services claim one virtual address and port.
    SAME_VIRTUAL_ADDRESS = "V0419";
    /// A referenced resource is not exported to the namespace of the reference.
    NOT_EXPORTED = "V0420";
    /// An application calls a service that its Sidecar does not include.
    LEFT_OUT_BY_SIDECAR = "V0421";
    /// A rule names a caller that cannot exist: no such service account, namespace or trust domain.
    UNKNOWN_PRINCIPAL = "V0422";
    /// HTTP routes are for a host without HTTP ports, or TCP or TLS routes for one without such ports: they are ignored.
    ROUTE_OF_OTHER_PROTOCOL = "V0423";
    /// A VirtualService delegates to one that does not exist or cannot be a delegate.
    UNKNOWN_DELEGATE = "V0424";
    /// Routes match JWT claims where no token is verified.
    CLAIMS_WITHOUT_TOKENS = "V0425";
    /// A server's certificate is not verified: an attacker on the path can impersonate the server.
    UNVERIFIED_SERVER = "V0426";
    /// An ALLOW policy selects workloads at which a DENY policy denies everything.
    DENIED_ANYWAY = "V0427";
    /// A reference into another namespace that no ReferenceGrant of it permits.
    NOT_GRANTED = "V0428";
    /// An application without a sidecar calls a service that accepts only mutual TLS.
    PLAINTEXT_CALLER = "V0429";
    /// Failover between localities without outlier detection, which alone would trigger it.
    FAILOVER_WITHOUT_EJECTION = "V0430";
    /// A namespace has several labels that select the proxies of its Pods.
    INJECTION_SAID_TWICE = "V0431";
    /// A gateway's listener does not allow routes of this namespace.
    ROUTE_NOT_ADMITTED = "V0432";
    /// A VirtualService has a host that no service of the mesh has: its routes are never used.
    ROUTED_HOST_WITHOUT_SERVICE = "V0433";
    /// A field of a Gateway, a listener or a route of Gateway API is not supported, or contradicts another.
    GATEWAY_API_REFUSED = "V0434";
    /// Connections to a port of an ExternalName Service carry no host name: no rule of the mesh applies to them.
    EXTERNAL_NAME_PORT = "V0435";
    /// A VirtualService names a Gateway that Istio generates internally.
    INTERNAL_GATEWAY = "V0436";
    /// A gateway routes to a host whose subsets another VirtualService selects only for callers in the mesh.
    SUBSETS_NOT_AT_GATEWAY = "V0437";
    /// Gateways of the same workloads serve the same certificate.
    SHARED_CERTIFICATE = "V0438";
    /// A VirtualService has no hosts, and no other VirtualService delegates to it: its routes are never used.
    DELEGATE_OF_NOBODY = "V0440";
    /// Clients reject a gateway's certificate: it is expired, not yet valid, for other hosts, or has a broken chain.
    REFUSED_CERTIFICATE = "V0441";
    /// A Gateway selects a gateway of Istio's installation that no resource declares: `voile up` starts one (a note).
    DEFAULT_GATEWAY_STARTED = "V0442";
    /// A variable of a container comes from a ConfigMap or Secret, or a key, that does not exist.
    VARIABLE_FROM_NOTHING = "V0443";
    /// A workload is on another network that has no Gateway.
    NETWORK_WITHOUT_GATEWAY = "V0450";
    /// A Gateway between networks lacks what callers need to find and verify it, and is not in force.
    NETWORK_GATEWAY_UNUSABLE = "V0451";
    /// A service with the label `istio.io/global` is not exported to other networks.
    GLOBAL_NOT_EXPORTED = "V0453";
    /// A DestinationRule prevents clients from calling a service's workloads on another network.
    NETWORK_KEPT_FROM = "V0454";
    /// A workload of a service with the label `istio.io/global` does not accept HBONE: callers on other networks never reach it.
    NETWORK_WITHOUT_TUNNEL = "V0455";
}
