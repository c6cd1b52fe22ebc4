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
    /// A service's target port is named, and no container port has that name.
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
    /// STRICT holds for a workload before which no proxy stands to enforce it.
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
    /// An AuthorizationPolicy holds for a workload before which no proxy stands to enforce it.
    AUTHORIZATION_WITHOUT_SIDECAR = "V0323";
    /// An AuthorizationPolicy aims (`targetRefs`) at what no waypoint stands before; sidecars, gateways and node proxies do not obey it, as in Istio.
    TARGETS_NOT_ENFORCED = "V0324";
    /// A rule asks for what only HTTP has, and holds for a port that speaks something else: an ALLOW rule allows nothing there, any
    /// other is asked without it.
    HTTP_ON_TCP = "V0325";
    /// A rule asks who calls, and callers in plaintext are nobody: a DENY rule does not deny them.
    NO_IDENTITY = "V0326";
    /// An ALLOW policy without rules, and nothing else, decides about a workload: it takes no calls.
    ALLOWS_NOTHING = "V0327";
    /// A rule names a port that no workload of its policy serves.
    AUTHORIZATION_PORT_UNSERVED = "V0328";
    /// A CUSTOM policy names a provider that MeshConfig does not have, or one that cannot decide.
    UNKNOWN_AUTHORIZER = "V0329";
    /// CUSTOM policies of one workload name several providers: what they match is denied.
    SEVERAL_AUTHORIZERS = "V0330";
    /// A rule asks for what a token says, and no token is verified where it holds.
    NO_TOKEN = "V0331";
    /// A value that no request can have: a method in lower case, a path with a query.
    NEVER_MATCHES = "V0332";
    /// A rule asks for the first client's address, and no proxy in front is trusted to tell it.
    NO_TRUSTED_PROXY = "V0333";
    /// A RequestAuthentication selects no workload.
    TOKENS_SELECT_NOTHING = "V0334";
    /// A RequestAuthentication holds for a workload before which no proxy stands to enforce it.
    TOKENS_WITHOUT_SIDECAR = "V0335";
    /// A RequestAuthentication aims (`targetRefs`) at what no waypoint stands before; sidecars, gateways and node proxies do not obey it, as in Istio.
    TOKEN_TARGETS_NOT_ENFORCED = "V0336";
    /// Keys of `jwks` that cannot be used, or that hold what only the issuer may have.
    BAD_KEYS = "V0337";
    /// Nothing asks for a token where a RequestAuthentication holds: requests without one pass.
    TOKEN_NOT_REQUIRED = "V0338";
    /// Keys are fetched over plaintext HTTP: who can change them on the way makes tokens.
    KEYS_IN_PLAINTEXT = "V0339";
    /// The service of a CUSTOM policy's provider is not in the mesh, or has no such port: what would be asked is denied.
    AUTHORIZER_UNREACHABLE = "V0340";
    /// A CUSTOM policy whose provider is asked over HTTP holds for a port that is opaque: what it matches there is denied.
    AUTHORIZER_KNOWS_HTTP = "V0341";
    /// A rule asks for a token of an issuer whom nobody believes where it holds.
    UNKNOWN_ISSUER = "V0342";
    /// A policy holds for a workload behind a node proxy and asks what only requests tell.
    NODE_PROXY_CANNOT_TELL = "V0343";
    /// A RequestAuthentication or RateLimit holds for a port that declares no protocol: what is not HTTP is denied there.
    REQUESTS_ONLY = "V0344";
    /// A RequestAuthentication selects a workload with a port declared TCP or TLS: no token is verified there.
    TOKENS_ON_TCP = "V0345";
    /// A container runs as the user that is the proxy's.
    PROXY_USER = "V0346";
    /// A container waits for the proxy to be injected in its place (`image: auto`), and nobody injects it.
    PROXY_NOT_INJECTED = "V0347";
    /// A policy's selector selects Pods of a Gateway of Gateway API, where Istio obeys `targetRefs`.
    SELECTOR_OF_GATEWAY = "V0348";
    /// A Sidecar is for workloads that have a node proxy and no sidecar: nobody obeys it.
    SIDECAR_OF_NOBODY = "V0349";
    /// A RateLimit selects no workload.
    RATE_LIMIT_SELECTS_NOTHING = "V0350";
    /// A RateLimit holds for a workload before which no proxy stands to count.
    RATE_LIMIT_WITHOUT_SIDECAR = "V0351";
    /// A rule of a RateLimit that no request reaches: an earlier one takes all that it matches.
    SHADOWED_LIMIT = "V0352";
    /// More RateLimits hold for a workload than its proxy asks.
    TOO_MANY_LIMITS = "V0353";
    /// A RateLimit has requests counted by a service that is not there.
    UNKNOWN_LIMITER = "V0354";
    /// No proxy asks by a HealthCheck.
    NOBODY_CHECKS = "V0355";
    /// A HealthCheck is for a host, or a port of it, that no service has.
    UNKNOWN_CHECKED_HOST = "V0356";
    /// A HealthCheck does not hold where a gateway lets the mesh's TLS through unread.
    UNREAD_CHECK = "V0357";
    /// An EndpointSlice or Endpoints is for no Service that takes it: there is none, or it selects workloads itself.
    SLICE_NOT_TAKEN = "V0360";
    /// An endpoint of an EndpointSlice is never called.
    ENDPOINT_NOT_CALLED = "V0361";
    /// A port of an EndpointSlice has a name that no port of its Service has: nobody calls it.
    SLICE_PORT_UNKNOWN = "V0362";
    /// A ServiceEntry of resolution DYNAMIC_DNS has a port on which clients name no host: nobody is called by it.
    HOST_NOT_NAMED = "V0363";
    /// A route leads to a host that no service has.
    UNKNOWN_ROUTE_HOST = "V0401";
    /// A route leads to a subset that no DestinationRule of its host declares.
    UNKNOWN_SUBSET = "V0402";
    /// A subset of a DestinationRule selects no workload of its service.
    EMPTY_SUBSET = "V0403";
    /// Two VirtualServices route one host at one place; in Istio which of them holds is undefined.
    CONFLICTING_ROUTES = "V0404";
    /// A route that nothing reaches: an earlier one takes all that it matches.
    SHADOWED_ROUTE = "V0405";
    /// A route names a gateway, or a listener of it, that is not there.
    UNKNOWN_GATEWAY = "V0406";
    /// A route's hosts are none of its gateway's.
    HOST_NOT_IN_GATEWAY = "V0407";
    /// A Gateway selects no workload: nothing listens.
    GATEWAY_SELECTS_NOTHING = "V0408";
    /// A Gateway listens to a port that no Service before its workloads has: nobody reaches it.
    GATEWAY_PORT_UNSERVED = "V0409";
    /// Two servers of Gateways want one port and host of the same workloads.
    CONFLICTING_GATEWAYS = "V0410";
    /// A credential that is named is not there, or lacks what it is named for.
    UNKNOWN_CREDENTIAL = "V0411";
    /// A DestinationRule tells clients to speak what the service's workloads refuse.
    MUTUAL_TLS_CONTRADICTION = "V0412";
    /// A route leads to a service of several ports and does not say which.
    AMBIGUOUS_PORT = "V0413";
    /// A route leads to a port that its service does not have.
    UNKNOWN_ROUTE_PORT = "V0414";
    /// A port of a service does not say what is spoken on it: that is found out from the first bytes.
    PORT_WITHOUT_PROTOCOL = "V0415";
    /// Services send different protocols to one port of a workload.
    PORT_PROTOCOLS_DIFFER = "V0416";
    /// Nobody answers for a service: it selects nothing and has no endpoints.
    NO_ENDPOINTS = "V0417";
    /// One host is declared twice, and differently, for the same clients.
    SAME_HOST_DIFFERENTLY = "V0418";
    /// Two services claim one virtual address and port.
    SAME_VIRTUAL_ADDRESS = "V0419";
    /// What is pointed at is not exported to where it is used.
    NOT_EXPORTED = "V0420";
    /// An application is told to call a service that its Sidecar leaves out.
    LEFT_OUT_BY_SIDECAR = "V0421";
    /// A rule names a caller whom nobody can be: no such service account, namespace or trust domain.
    UNKNOWN_PRINCIPAL = "V0422";
    /// HTTP routes of a host on whose ports no HTTP is spoken, or the other way round: they are not looked at.
    ROUTE_OF_OTHER_PROTOCOL = "V0423";
    /// A VirtualService hands over to one that is not there, or that cannot be handed over to.
    UNKNOWN_DELEGATE = "V0424";
    /// Requests are routed by what a token says where no token is verified.
    CLAIMS_WITHOUT_TOKENS = "V0425";
    /// A server's certificate is not looked at: whoever is in between can be it.
    UNVERIFIED_SERVER = "V0426";
    /// An ALLOW policy is for workloads at which a DENY policy denies everything.
    DENIED_ANYWAY = "V0427";
    /// A reference into another namespace that no ReferenceGrant of it permits.
    NOT_GRANTED = "V0428";
    /// An application without a sidecar is told to call a service that takes mutual TLS only.
    PLAINTEXT_CALLER = "V0429";
    /// Failover between localities without outlier detection, which alone would trigger it.
    FAILOVER_WITHOUT_EJECTION = "V0430";
    /// A namespace says in several labels which proxies its Pods get.
    INJECTION_SAID_TWICE = "V0431";
    /// A gateway's listener does not take routes of this namespace.
    ROUTE_NOT_ADMITTED = "V0432";
    /// A VirtualService routes a host that no service of the mesh has: nobody asks for its routes.
    ROUTED_HOST_WITHOUT_SERVICE = "V0433";
    /// Something of a Gateway, a listener or a route of Gateway API that is not done here, or that contradicts another.
    GATEWAY_API_REFUSED = "V0434";
    /// A port of an ExternalName Service on which clients name no host: nothing of the mesh holds for it.
    EXTERNAL_NAME_PORT = "V0435";
    /// A VirtualService names a Gateway that Istio makes for itself.
    INTERNAL_GATEWAY = "V0436";
    /// A gateway leads to a host whose subsets another VirtualService chooses for callers in the mesh alone.
    SUBSETS_NOT_AT_GATEWAY = "V0437";
    /// Gateways of the same workloads show one certificate.
    SHARED_CERTIFICATE = "V0438";
    /// A VirtualService without hosts to which no other hands over: no request takes its routes.
    DELEGATE_OF_NOBODY = "V0440";
    /// A gateway's certificate that clients refuse: expired, not yet valid, for other hosts, or with a broken chain.
    REFUSED_CERTIFICATE = "V0441";
    /// A Gateway is for a gateway of Istio's installation that nobody wrote: `voile up` starts one (a note).
    DEFAULT_GATEWAY_STARTED = "V0442";
    /// A variable of a container comes from a ConfigMap or Secret that is not there, or from a key that it lacks.
    VARIABLE_FROM_NOTHING = "V0443";
    /// A workload is on another network, to which no Gateway leads.
    NETWORK_WITHOUT_GATEWAY = "V0450";
    /// A Gateway between networks lacks what callers need to find and verify it, and is not in force.
    NETWORK_GATEWAY_UNUSABLE = "V0451";
    /// A service that is meant for other networks (`istio.io/global`) cannot be called from there.
    GLOBAL_NOT_EXPORTED = "V0453";
    /// A DestinationRule keeps callers from a service's workloads on another network.
    NETWORK_KEPT_FROM = "V0454";
    /// A workload of a service that is meant for other networks takes no tunnels: no caller from there is led to it.
    NETWORK_WITHOUT_TUNNEL = "V0455";
}
