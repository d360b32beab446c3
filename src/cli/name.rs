//! Names of objects, as arguments: what the API server would refuse later is refused at once.

use lessor_api::LeaseName;

/// The longest name of a namespace.
const LONGEST: usize = 63;

/// The name of a namespace.
///
/// # Errors
/// Says what such a name looks like.
pub(super) fn namespace(text: &str) -> Result<String, String> {
    match object(text) {
        Ok(name) if name.len() <= LONGEST && !name.contains('.') => Ok(name),
        _ => Err(format!(
            "{text:?} is no name of a namespace: write lower-case letters, digits and \"-\", at most {LONGEST}"
        )),
    }
}

/// The name of an object.
///
/// # Errors
/// Says what such a name looks like.
pub(super) fn object(text: &str) -> Result<String, String> {
    match LeaseName::parse(text) {
        Ok(name) => Ok(name.as_str().to_owned()),
        Err(fault) => Err(format!("{text:?} is no name of an object: {fault}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_would_refuse_is_no_name() {
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
