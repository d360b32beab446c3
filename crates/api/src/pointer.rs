//! JSON Pointers (RFC 6901) to members of an object, as keys of kinds that have no `data`.
//!
//! An index into an array is no member: positions shift while others edit. Text can't tell an index from a member named
//! `0`, so [`Pointer::locate`] decides that on the object itself, when the member is to be removed.

use std::{cmp::Ordering, fmt, sync::Arc};

use serde_json::Value;

use super::{GROUP, attachment::shortened};

/// The longest pointer that is accepted, in bytes.
pub const MAX_LENGTH: usize = 1024;

/// A JSON Pointer to a member of an object which may be removed, at any depth.
///
/// Ordered by its tokens, so that a pointer comes right before those that lie inside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer(Arc<str>);

/// Why a text is no pointer that may be removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PointerError {
    /// It doesn't begin with a slash.
    #[error("{0:?} is no JSON pointer: it begins with a slash, like \"/spec/suspend\"")]
    NoSlash(String),
    /// It is longer than [`MAX_LENGTH`].
    #[error("{0:?} is longer than {MAX_LENGTH} bytes")]
    TooLong(String),
    /// It has an empty part, as in `/spec/`.
    #[error(
        "{0:?} has an empty part: write it like \"/spec/suspend\", without a slash at the end or two in a row"
    )]
    EmptyPart(String),
    /// It has a `~` that is neither `~0` nor `~1`.
    #[error("{0:?} has a lone \"~\": write \"~0\" for \"~\" and \"~1\" for \"/\"")]
    BadEscape(String),
    /// It points past the end of an array.
    #[error(
        "{0:?} points into an array, whose positions shift: name a member of an object, like \"/spec/suspend\""
    )]
    IntoArray(String),
    /// It points at what makes the object what it is.
    #[error(
        "{0:?} can't be removed: of \"/metadata\" only single labels and foreign annotations can, like \
         \"/metadata/labels/session\", and of \"/status\", \"/kind\" and \"/apiVersion\" nothing"
    )]
    Protected(String),
}

/// Where a pointer leads in a given object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// To a member that is there.
    Present,
    /// To nothing: the member, or one on the way to it, isn't there.
    Absent,
    /// Into an array: there is nothing that may be removed.
    InArray,
}

impl Pointer {
    /// Reads a pointer.
    ///
    /// # Errors
    ///
    /// Says what is wrong with `text` and shows how it would be right.
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let shown = || shortened(text);
        if text.len() > MAX_LENGTH {
            return Err(PointerError::TooLong(shown()));
        }
        let Some(path) = text.strip_prefix('/') else {
            return Err(PointerError::NoSlash(shown()));
        };
        for token in path.split('/') {
            if token.is_empty() {
                return Err(PointerError::EmptyPart(shown()));
            }
            if token.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
                return Err(PointerError::BadEscape(shown()));
            }
            if token == "-" {
                return Err(PointerError::IntoArray(shown()));
            }
        }
        let pointer = Self(text.into());
        if pointer.is_protected() { Err(PointerError::Protected(shown())) } else { Ok(pointer) }
    }

    /// The pointer as text, with its escapes: what a JSON patch takes as its path.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names on the way, from the outermost in, unescaped.
    pub fn tokens(&self) -> impl Iterator<Item = String> {
        self.raw_tokens().map(unescaped)
    }

    /// Whether `other` points at this very member, or into it.
    pub fn contains(&self, other: &Self) -> bool {
        other.0.strip_prefix(&*self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Where this pointer leads in `object`.
    pub fn locate(&self, object: &Value) -> Location {
        let mut at = object;
        for token in self.tokens() {
            at = match at {
                Value::Object(members) => match members.get(&token) {
                    Some(member) => member,
                    None => return Location::Absent,
                },
                Value::Array(_) => return Location::InArray,
                _ => return Location::Absent,
            };
        }
        Location::Present
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

/// Whether an annotation belongs to Lessor: `lessor.dev/…`, or in a domain below it.
fn is_our_annotation(name: &str) -> bool {
    let domain = name.split_once('/').map_or("", |(domain, _)| domain);
    domain == GROUP || domain.strip_suffix(GROUP).is_some_and(|rest| rest.ends_with('.'))
}

fn unescaped(token: &str) -> String {
    // In this order: "~01" is "~1", and not "/".
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
    fn a_pointer_names_members_from_the_outermost_in() {
        let names: Vec<_> = pointer("/spec/a~1b/m~0n/~01").tokens().collect();
        assert_eq!(names, ["spec", "a/b", "m~n", "~1"]);
    }

    #[test]
    fn what_is_no_pointer_is_refused_with_a_word_on_what_would_be() {
        use PointerError::{BadEscape, EmptyPart, IntoArray, NoSlash, TooLong};
        assert!(matches!(Pointer::parse(""), Err(NoSlash(_))));
        assert!(matches!(Pointer::parse("spec/a"), Err(NoSlash(_))));
        assert!(matches!(Pointer::parse("/"), Err(EmptyPart(_))));
        assert!(matches!(Pointer::parse("/spec/"), Err(EmptyPart(_))));
        assert!(matches!(Pointer::parse("/spec//a"), Err(EmptyPart(_))));
        assert!(matches!(Pointer::parse("/spec/~"), Err(BadEscape(_))));
        assert!(matches!(Pointer::parse("/spec/~2"), Err(BadEscape(_))));
        assert!(matches!(Pointer::parse("/spec/~~0"), Err(BadEscape(_))));
        assert!(matches!(Pointer::parse("/spec/list/-"), Err(IntoArray(_))));
        assert!(matches!(Pointer::parse(&format!("/{}", "a".repeat(MAX_LENGTH))), Err(TooLong(_))));
    }

    #[test]
    fn what_makes_the_object_what_it_is_cannot_be_named() {
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
            assert!(matches!(Pointer::parse(text), Err(PointerError::Protected(_))), "{text}");
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
    fn a_pointer_leads_to_members_only() {
        let object = json!({"spec": {"a/b": {"0": null}, "list": [{"name": "x"}], "text": "y"}});
        let locate = |text| pointer(text).locate(&object);
        assert_eq!(locate("/spec/a~1b"), Location::Present);
        assert_eq!(locate("/spec/a~1b/0"), Location::Present);
        assert_eq!(locate("/spec/list"), Location::Present);
        assert_eq!(locate("/spec/a~1b/1"), Location::Absent);
        assert_eq!(locate("/spec/none/deeper"), Location::Absent);
        assert_eq!(locate("/spec/text/deeper"), Location::Absent);
        assert_eq!(locate("/spec/list/0"), Location::InArray);
        assert_eq!(locate("/spec/list/0/name"), Location::InArray);
        assert_eq!(locate("/spec/list/7"), Location::InArray);
    }

    #[test]
    fn a_pointer_contains_itself_and_what_lies_inside_it() {
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
        fn a_pointer_says_the_same_as_the_names_it_was_made_of(names in prop::collection::vec("[a-b~/0-1]{1,3}", 1..5)) {
            let escaped: String =
                names.iter().map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1"))).collect();
            prop_assert_eq!(pointer(&escaped).tokens().collect::<Vec<_>>(), names);
        }

        #[test]
        fn in_order_what_lies_inside_comes_right_behind(
            texts in prop::collection::btree_set("(/a[a-]?){1,3}", 2..8)
        ) {
            let sorted: std::collections::BTreeSet<Pointer> = texts.iter().map(|text| pointer(text)).collect();
            let nested = sorted.iter().any(|a| sorted.iter().any(|b| a != b && a.contains(b)));
            let neighbours = sorted.iter().zip(sorted.iter().skip(1)).any(|(a, b)| a.contains(b));
            prop_assert_eq!(nested, neighbours);
        }
    }
}
