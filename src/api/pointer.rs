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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
