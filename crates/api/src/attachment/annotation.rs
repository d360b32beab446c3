//! Names of the annotations.

/// The annotation that attaches the whole object.
pub const LEASE_ANNOTATION: &str = "lessor.dev/lease";
/// The prefix of the annotations that attach one key each.
pub const KEY_PREFIX: &str = "key.lessor.dev/";
/// The annotation that attaches keys as a JSON object.
pub const KEYS_ANNOTATION: &str = "lessor.dev/keys";
/// The annotation with the propagation policy of an object's deletion.
pub const PROPAGATION_ANNOTATION: &str = "lessor.dev/propagation";
