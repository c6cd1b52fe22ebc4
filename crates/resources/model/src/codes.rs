//! Every code that reading and checking one resource can give, with what it means. Cross-resource codes (V03xx) are in
//! `voile-analysis`. A code never changes its meaning, so that people can search for it.

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal;)*) => {
        $($(#[doc = $doc])+ pub const $name: &str = $code;)*

        /// Code and meaning, in order.
        pub const TABLE: &[(&str, &str)] = &[$(($code, concat!($($doc),+).trim_ascii_start())),*];
    };
}

codes! {
    /// The file cannot be read.
    UNREADABLE = "V0001";
    /// The text is not YAML.
    NOT_YAML = "V0002";
    /// The document is larger, deeper or more repetitive than is allowed.
    LIMIT = "V0003";
    /// A key is written twice in one mapping.
    DUPLICATE_KEY = "V0004";
    /// A feature of YAML that resources do not use: a key that is not text, a merge key without a mapping, an alias to itself.
    YAML_FEATURE = "V0005";
    /// No such field.
    UNKNOWN_FIELD = "V0101";
    /// A value of another type is wanted.
    WRONG_TYPE = "V0102";
    /// A field that must be there is not.
    MISSING = "V0103";
    /// The value is not one of those allowed.
    BAD_VALUE = "V0104";
    /// Part of Istio or Kubernetes, but not yet of Voile; it is not in force.
    NOT_YET = "V0105";
    /// A kind that Voile will not support; it is not in force.
    REFUSED = "V0106";
    /// The mesh does not use this kind, or the document is no Kubernetes resource; ignored.
    NO_MEANING = "V0107";
    /// No such kind.
    UNKNOWN_KIND = "V0108";
    /// The apiVersion does not have this kind.
    API_VERSION = "V0109";
    /// The last good version of a resource stays in force.
    LAST_GOOD = "V0110";
    /// The resource is declared a second time.
    DECLARED_TWICE = "V0111";
    /// Fields of one resource contradict each other.
    CONTRADICTION = "V0112";
    /// Two resources claim one name or address in the mesh.
    CLASH = "V0113";
    /// A security resource was never valid: because of its errors, requests that it decides about are denied.
    NOT_ENFORCED = "V0114";
    /// A policy of a kind that the mesh does not enforce.
    UNENFORCED_KIND = "V0115";
    /// A `*` inside a value of an AuthorizationPolicy is matched literally.
    LITERAL_STAR = "V0116";
    /// `voile.dev/ignore` contains a value that is no code.
    UNKNOWN_IGNORED = "V0117";
    /// A label or annotation that applies to Pods is on another kind, such as a Deployment.
    MISPLACED = "V0118";
    /// A field has no effect; everything else of its resource is in force.
    NOT_OBEYED = "V0119";
    /// A label or annotation in a group of Istio that Istio does not have.
    UNKNOWN_METADATA = "V0120";
    /// An annotation of Istio has an invalid value.
    BAD_METADATA = "V0121";
    /// An annotation that Istio has deprecated.
    DEPRECATED_METADATA = "V0122";
    /// An annotation that is alpha in Istio.
    ALPHA_METADATA = "V0123";
    /// A document may be a security resource and cannot be read, and no earlier version of the mesh is known.
    NEVER_READ = "V0124";
}

/// `portLevelMtls` without a selector. The table of `voile-analysis` has it, among its neighbours.
pub const PORT_LEVEL_WITHOUT_SELECTOR: &str = "V0305";
