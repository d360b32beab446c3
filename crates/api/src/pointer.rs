//! JSON Pointers (RFC 6901) to members of an object: the keys of kinds without `data`.
//!
//! Array elements can't be attached, because their indices shift when other writers edit the array. The text alone doesn't
//! distinguish an index from a member named `0`, so [`Pointer::locate`] checks the object when the member is removed.

use std::{cmp::Ordering, fmt, sync::Arc};

use serde_json::Value;

use super::{GROUP, shorten::shortened};

/// The longest pointer that is accepted, in bytes.
pub const MAX_LENGTH: usize = 1024;

/// A JSON Pointer to a removable member of an object, at any depth.
///
/// Ordered by tokens, so that a pointer sorts directly before the pointers inside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(Arc<str>);

/// Why a text is not a pointer to a removable member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum InvalidPointer {
    /// It doesn't begin with a slash.
    #[error("invalid JSON pointer {0:?}: it must begin with a slash, like \"/spec/suspend\"")]
    NoSlash(String),
    /// It is longer than [`MAX_LENGTH`].
    #[error("invalid JSON pointer {0:?}: longer than {MAX_LENGTH} bytes")]
    TooLong(String),
    /// It has an empty token, as in `/spec/`.
    #[error(
        "invalid JSON pointer {0:?}: an empty token; remove the slash at the end or the second of two slashes, like \
         \"/spec/suspend\""
    )]
    EmptyToken(String),
    /// It has a `~` that is neither `~0` nor `~1`.
    #[error("invalid JSON pointer {0:?}: escape \"~\" as \"~0\" and \"/\" as \"~1\"")]
    BadEscape(String),
    /// It points past the end of an array.
    #[error(
        "{0:?} points into an array, where indices shift: use a member of an object, like \"/spec/suspend\""
    )]
    IntoArray(String),
    /// It points at what identifies the object, or at its status.
    #[error(
        "{0:?} is protected: \"/status\", \"/kind\", \"/apiVersion\" and \"/metadata\" can't be removed, except single labels \
         and annotations outside lessor.dev, like \"/metadata/labels/session\""
    )]
    Protected(String),
}

/// What a pointer refers to in a given object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerTarget {
    /// A member that exists.
    Present,
    /// Nothing: the member, or one of its parents, doesn't exist.
    Absent,
    /// An array element, which is never removed.
    InArray,
}

impl Pointer {
    /// Parses a pointer.
    ///
    /// # Errors
    ///
    /// The first reason why `text` is invalid, with an example.
    pub fn parse(text: &str) -> Result<Self, InvalidPointer> {
        let shown = || shortened(text);
        if text.len() > MAX_LENGTH {
            return Err(InvalidPointer::TooLong(shown()));
        }
        let Some(path) = text.strip_prefix('/') else {
            return Err(InvalidPointer::NoSlash(shown()));
        };
        for token in path.split('/') {
            if token.is_empty() {
                return Err(InvalidPointer::EmptyToken(shown()));
            }
            if token.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
                return Err(InvalidPointer::BadEscape(shown()));
            }
            if token == "-" {
                return Err(InvalidPointer::IntoArray(shown()));
            }
        }
        let pointer = Self(text.into());
        if pointer.is_protected() { Err(InvalidPointer::Protected(shown())) } else { Ok(pointer) }
    }

    /// The pointer with its escapes: the `path` of a JSON patch.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The unescaped tokens, from the outermost to the innermost.
    pub fn tokens(&self) -> impl Iterator<Item = String> {
        self.raw_tokens().map(unescaped)
    }

    /// Whether `other` is this pointer, or points inside its member.
    pub fn contains(&self, other: &Self) -> bool {
        other.0.strip_prefix(&*self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// What this pointer refers to in `object`.
    pub fn locate(&self, object: &Value) -> PointerTarget {
        let mut at = object;
        for token in self.tokens() {
            at = match at {
                Value::Object(members) => match members.get(&token) {
                    Some(member) => member,
                    None => return PointerTarget::Absent,
                },
                Value::Array(_) => return PointerTarget::InArray,
                _ => return PointerTarget::Absent,
            };
        }
        PointerTarget::Present
    }

    fn raw_tokens(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').skip(1)
    }

    fn is_protected(&self) -> bool {
        let mut tokens = self.tokens();
        match tokens.next().as_deref() {
            Some("status" | "kind" | "apiVersion") => true,
            Some("metadata") => {
                let (field, name, deeper) = (tokens.next(), tokens.next(), tokens.next());
                let removable = match (field.as_deref(), name.as_deref(), deeper) {
                    (Some("labels"), Some(_), None) => true,
                    (Some("annotations"), Some(name), None) => !is_our_annotation(name),
                    _ => false,
                };
                !removable
            }
            _ => false,
        }
    }
}

/// Whether an annotation is in the domain `lessor.dev` or below it.
fn is_our_annotation(name: &str) -> bool {
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    domain == GROUP || domain.strip_suffix(GROUP).is_some_and(|rest| rest.ends_with('.'))
}

fn unescaped(token: &str) -> String {
    // The order matters: "~01" means "~1".
    token.replace("~1", "/").replace("~0", "~")
}

impl Ord for Pointer {
    fn cmp(&self, other: &Self) -> Ordering {
        self.raw_tokens().cmp(other.raw_tokens())
    }
}

impl PartialOrd for Pointer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pointer(text: &str) -> Pointer {
        Pointer::parse(text).expect("a pointer")
    }

    #[test]
    fn tokens_go_from_the_outermost_member_to_the_innermost() {
        let names: Vec<_> = pointer("/spec/a~1b/m~0n/~01").tokens().collect();
        assert_eq!(names, ["spec", "a/b", "m~n", "~1"]);
    }

    #[test]
    fn an_invalid_pointer_is_refused() {
        use InvalidPointer::{BadEscape, EmptyToken, IntoArray, NoSlash, TooLong};
        assert!(matches!(Pointer::parse(""), Err(NoSlash(_))));
        assert!(matches!(Pointer::parse("spec/a"), Err(NoSlash(_))));
        assert!(matches!(Pointer::parse("/"), Err(EmptyToken(_))));
        assert!(matches!(Pointer::parse("/spec/"), Err(EmptyToken(_))));
        assert!(matches!(Pointer::parse("/spec//a"), Err(EmptyToken(_))));
        assert!(matches!(Pointer::parse("/spec/~"), Err(BadEscape(_))));
        assert!(matches!(Pointer::parse("/spec/~2"), Err(BadEscape(_))));
        assert!(matches!(Pointer::parse("/spec/~~0"), Err(BadEscape(_))));
        assert!(matches!(Pointer::parse("/spec/list/-"), Err(IntoArray(_))));
        assert!(matches!(Pointer::parse(&format!("/{}", "a".repeat(MAX_LENGTH))), Err(TooLong(_))));
    }

    #[test]
    fn identity_and_status_of_an_object_are_protected() {
        for text in [
            "/kind",
            "/apiVersion",
            "/status",
            "/status/phase",
            "/metadata",
            "/metadata/name",
            "/metadata/finalizers",
            "/metadata/labels",
            "/metadata/labels/a/b",
            "/metadata/annotations",
            "/metadata/annotations/lessor.dev~1lease",
            "/metadata/annotations/key.lessor.dev~1a",
            "/metadata/annotations/lessor.dev~1keys/a",
        ] {
            assert!(matches!(Pointer::parse(text), Err(InvalidPointer::Protected(_))), "{text}");
        }
        for text in [
            "/metadata/labels/session",
            "/metadata/annotations/note",
            "/metadata/annotations/example.com~1note",
            "/metadata/annotations/notlessor.dev~1note",
            "/spec",
            "/spec/status",
            "/statuses",
        ] {
            assert!(Pointer::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn a_pointer_locates_members_and_no_array_elements() {
        let object = json!({"spec": {"a/b": {"0": null}, "list": [{"name": "x"}], "text": "y"}});
        let locate = |text| pointer(text).locate(&object);
        assert_eq!(locate("/spec/a~1b"), PointerTarget::Present);
        assert_eq!(locate("/spec/a~1b/0"), PointerTarget::Present);
        assert_eq!(locate("/spec/list"), PointerTarget::Present);
        assert_eq!(locate("/spec/a~1b/1"), PointerTarget::Absent);
        assert_eq!(locate("/spec/none/deeper"), PointerTarget::Absent);
        assert_eq!(locate("/spec/text/deeper"), PointerTarget::Absent);
        assert_eq!(locate("/spec/list/0"), PointerTarget::InArray);
        assert_eq!(locate("/spec/list/0/name"), PointerTarget::InArray);
        assert_eq!(locate("/spec/list/7"), PointerTarget::InArray);
    }

    #[test]
    fn a_pointer_contains_itself_and_pointers_inside_it() {
        let outer = pointer("/spec/a");
        assert!(outer.contains(&outer) && outer.contains(&pointer("/spec/a/b")));
        assert!(!outer.contains(&pointer("/spec/ab")) && !pointer("/spec/a/b").contains(&outer));
    }

    proptest! {
        #[test]
        fn any_text_is_a_pointer_or_refused(text in any::<String>()) {
            if let Ok(pointer) = Pointer::parse(&text) {
                prop_assert_eq!(pointer.as_str(), text);
            }
        }

        #[test]
        fn tokens_survive_escaping_and_parsing(names in prop::collection::vec("[a-b~/0-1]{1,3}", 1..5)) {
            let escaped: String =
                names.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
            prop_assert_eq!(pointer(&escaped).tokens().collect::<Vec<_>>(), names);
        }

        #[test]
        fn a_pointer_sorts_directly_before_those_inside_it(
            texts in prop::collection::btree_set("(/a[a-]?){1,3}", 2..8)
        ) {
            let sorted: std::collections::BTreeSet<Pointer> = texts.iter().map(|text| pointer(text)).collect();
            let nested = sorted.iter().any(|a| sorted.iter().any(|b| a != b && a.contains(b)));
            let neighbours = sorted.iter().zip(sorted.iter().skip(1)).any(|(a, b)| a.contains(b));
            prop_assert_eq!(nested, neighbours);
        }
    }
}
