//! Names of objects, as arguments, checked as the API server does.

use lessor_api::LeaseName;

/// The maximal length of the name of a namespace.
const MAX_LENGTH: usize = 63;

/// The name of a namespace.
///
/// # Errors
/// A description of valid names.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    match object(text) {
        Ok(name) if name.len() <= MAX_LENGTH && !name.contains('.') => Ok(name),
        _ => Err(format!(
            "invalid namespace {text:?}: expected at most {MAX_LENGTH} lower-case letters, digits and \"-\""
        )),
    }
}

/// The name of an object.
///
/// # Errors
/// A description of valid names.
pub(super) fn object(text: &str) -> Result<String, String> {
    match LeaseName::parse(text) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(fault) => Err(format!("invalid name {text:?}: {fault}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_api_server_refuses_are_invalid() {
        assert_eq!(namespace("team-a"), Ok("team-a".to_owned()));
        assert_eq!(object("apart.example"), Ok("apart.example".to_owned()));
        for wrong in ["", "Team", "team_a", "-a", "a.b", "team a", &"a".repeat(64)] {
            assert!(namespace(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "Team", "a..b", "a/b", &"a".repeat(254)] {
            assert!(object(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }
}
