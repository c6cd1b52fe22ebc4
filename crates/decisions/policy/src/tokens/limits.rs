//! Every limit of what a stranger's token may cost.

/// Allowed clock skew in seconds for `exp` and `nbf`: Envoy's default.
pub const CLOCK_SKEW_SECONDS: u64 = 60;
/// Longest token in bytes: as long as a request's head may be, so that it is the head's limit that people meet.
pub const MAX_TOKEN_BYTES: usize = 60 * 1024;
/// Most values (texts, numbers, lists, objects) in one token: a thousand claims with lists in them pass, a bomb does not.
pub const MAX_CLAIM_VALUES: usize = 8 * 1024;
/// Deepest nesting of lists and objects in a token or key set: Envoy's limit.
pub const MAX_DEPTH: usize = 100;
/// Most tokens one request may carry in the places that rules name.
pub const MAX_TOKENS: usize = 8;
/// Most signature checks for one request. A token without `kid` is tried with every key that fits it, and several rules may
/// believe one issuer.
pub const MAX_SIGNATURE_CHECKS: usize = 16;
/// Longest key set in bytes: a few hundred keys.
pub const MAX_KEY_SET_BYTES: usize = 256 * 1024;
/// Most keys of a set that are used; issuers have two or three.
pub const MAX_KEYS: usize = 100;
/// Longest value of a header that is written from a claim, in bytes.
pub const MAX_OUTPUT_BYTES: usize = 8 * 1024;
/// Size of a worker's cache of good tokens in bytes: about a thousand ordinary tokens.
pub const CACHE_BYTES: usize = 2 * 1024 * 1024;
/// Headers of good tokens that one worker remembers: an issuer has one for each key it signs with.
pub(super) const MAX_HEADERS: usize = 256;
/// Longest header that is remembered, in bytes of base64; `alg`, `typ` and a long `kid` take a hundred.
pub(super) const MAX_HEADER_BYTES: usize = 512;
/// Key sets that are remembered not to have made a good token's signature, where several rules believe its issuer.
pub(super) const MAX_STRANGERS: usize = 4;
