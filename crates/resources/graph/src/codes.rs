//! Every code that checking a service graph can give beyond those of reading YAML (`V00xx`, `V01xx`, in `voile-model`).

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $code:literal;)*) => {
        $($(#[doc = $doc])+ pub const $name: &str = $code;)*

        /// Code and meaning, in order.
        pub const TABLE: &[(&str, &str)] = &[$(($code, concat!($($doc),+).trim_ascii_start())),*];
    };
}

codes! {
    /// Services call each other in a circle, and a request would never end (or cause calls without end).
    ENDLESS = "V0701";
    /// Services call each other in a circle that a probability ends.
    CIRCLE = "V0702";
    /// A call to a service that the graph does not have.
    UNKNOWN_SERVICE = "V0703";
    /// No service is marked as an entry point; the services without callers are taken.
    NO_ENTRY = "V0704";
    /// Nothing leads to this service.
    UNREACHED = "V0705";
    /// One request would cause more calls than is sensible.
    TOO_MANY_CALLS = "V0706";
    /// Read, and without effect here.
    WITHOUT_EFFECT = "V0707";
    /// A list of concurrent commands within another, which isotope does not have.
    NESTED = "V0708";
}
