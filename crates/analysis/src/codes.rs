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
    /// A service's resolution is DYNAMIC_DNS, which is not built yet: explicit listeners answer calls to it 503.
    DNS_NOT_RESOLVED = "V0316";
    /// A Telemetry names a provider that MeshConfig does not have, or one that cannot take it.
    UNKNOWN_PROVIDER = "V0317";
    /// Several Telemetries are for one whole namespace; only the oldest counts.
    TWO_TELEMETRIES = "V0318";
    /// A Telemetry selects no workload.
    TELEMETRY_SELECTS_NOTHING = "V0319";
    /// A DestinationRule is for no service of its namespace, or another holds for all of its services.
    DESTINATION_WITHOUT_SERVICE = "V0320";
    /// `h2UpgradePolicy` of a DestinationRule is for a port that is not declared `http`.
    UPGRADE_OF_OTHERS = "V0321";
    /// An AuthorizationPolicy selects no workload.
    AUTHORIZATION_SELECTS_NOTHING = "V0322";
    /// An AuthorizationPolicy holds for a workload before which no proxy stands to enforce it.
    AUTHORIZATION_WITHOUT_SIDECAR = "V0323";
    /// An AuthorizationPolicy aims at waypoints or gateways (`targetRefs`), which are not there yet; it is not in force.
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
    /// A rule asks for what a token says, and tokens are not verified yet.
    NO_TOKEN = "V0331";
    /// A value that no request can have: a method in lower case, a path with a query.
    NEVER_MATCHES = "V0332";
    /// A rule asks for the first client's address, and no proxy in front is trusted to tell it.
    NO_TRUSTED_PROXY = "V0333";
    /// A RequestAuthentication selects no workload.
    TOKENS_SELECT_NOTHING = "V0334";
    /// A RequestAuthentication holds for a workload before which no proxy stands to enforce it.
    TOKENS_WITHOUT_SIDECAR = "V0335";
    /// A RequestAuthentication aims at waypoints or gateways (`targetRefs`), which are not there yet; it is not in force.
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
}
