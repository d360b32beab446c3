//! Installations whose namespaces overlap: which of them serves a namespace.
//!
//! Each `Lessor` names the namespaces of its installation (`status.namespaces`). Each installation reads those of the others,
//! and all apply one rule: **a namespace belongs to an installation that names it, rather than to one for all namespaces; among
//! equals, to the one with the older `Lessor`.** The others leave the namespace alone, as if nothing were in it.
//!
//! The rule spares users two installations that hinder each other. No promise rests on it: until both have observed each other,
//! each write is bound to the version and the term of its object.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use k8s_openapi::jiff::Timestamp;
use lessor_api::{Lessor, lessor::ALL_NAMESPACES};

use crate::settings::Settings;

/// How many namespaces of another installation a message names.
const NAMED: usize = 10;

/// The namespaces of an installation, and its rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Installation {
    /// `None`: all.
    namespaces: Option<BTreeSet<String>>,
    /// When its `Lessor` was created.
    created: Timestamp,
}

impl Installation {
    /// The installation of a `Lessor`; `None`: none has ever led under it.
    fn of(lessor: &Lessor) -> Option<Self> {
        let namespaces = &lessor.status.as_ref()?.namespaces;
        if namespaces.is_empty() {
            return None;
        }
        let everywhere = namespaces.iter().any(|namespace| namespace == ALL_NAMESPACES);
        Some(Self {
            namespaces: (!everywhere).then(|| namespaces.iter().cloned().collect()),
            created: created(lessor).unwrap_or(Timestamp::MAX),
        })
    }

    fn serves(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(namespace))
    }

    /// A namespace that several serve belongs to the lowest.
    fn rank<'a>(&self, lessor: &'a str) -> (bool, Timestamp, &'a str) {
        (self.namespaces.is_none(), self.created, lessor)
    }
}

/// The installations of a cluster, as one of them observes them.
#[derive(Clone, Debug, Hash)]
pub struct Overlap {
    /// The name of our `Lessor`.
    lessor: String,
    own: Installation,
    others: BTreeMap<String, Installation>,
}

impl Overlap {
    /// No other installation was observed yet.
    pub fn new(settings: &Settings) -> Self {
        let namespaces = Some(settings.namespaces.iter().cloned().collect());
        let own = Installation {
            namespaces: namespaces.filter(|_| !settings.namespaces.is_empty()),
            // Until our Lessor was observed, every other may be older.
            created: Timestamp::MAX,
        };
        Self { lessor: settings.lessor.clone(), own, others: BTreeMap::new() }
    }

    /// Our `Lessor` was observed.
    pub fn observe_own(&mut self, lessor: &Lessor) {
        if let Some(created) = created(lessor) {
            self.own.created = created;
        }
    }

    /// Another `Lessor` was observed.
    pub fn observe_other(&mut self, lessor: &Lessor) {
        let Some(name) = lessor.metadata.name.clone().filter(|name| *name != self.lessor) else { return };
        match Installation::of(lessor) {
            Some(installation) => drop(self.others.insert(name, installation)),
            None => drop(self.others.remove(&name)),
        }
    }

    /// Other `Lessor`s than these don't exist.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.others.retain(|name, _| exists(name));
    }

    /// The `Lessor` that a namespace of ours is left to.
    pub fn left_to(&self, namespace: &str) -> Option<&str> {
        let served = self.others.iter().filter(|(_, other)| other.serves(namespace));
        let (name, first) = served.min_by_key(|(name, other)| other.rank(name))?;
        (first.rank(name) < self.own.rank(&self.lessor)).then_some(name)
    }

    /// All namespaces of ours that are left to others; [`ALL_NAMESPACES`] stands for those that no installation names.
    pub fn left(&self) -> BTreeSet<String> {
        let named = self.others.values().filter_map(|other| other.namespaces.as_ref()).flatten();
        let everywhere = self.own.namespaces.is_none().then_some(ALL_NAMESPACES);
        let candidates = named.map(String::as_str).filter(|namespace| self.own.serves(namespace));
        let left = |namespace: &&str| self.left_to(namespace).is_some();
        candidates.chain(everywhere).filter(left).map(ToOwned::to_owned).collect()
    }

    /// Which namespaces are left to others, for users; `None`: none are.
    pub fn summary(&self) -> Option<String> {
        let left = self.left();
        let mut by_lessor: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for namespace in &left {
            let name = if namespace == ALL_NAMESPACES { "all namespaces" } else { namespace };
            by_lessor.entry(self.left_to(namespace)?).or_default().push(name);
        }
        let mut summary = String::new();
        for (lessor, namespaces) in by_lessor {
            let named = &namespaces[..namespaces.len().min(NAMED)];
            let more = namespaces.len() - named.len();
            let separator = if summary.is_empty() { "" } else { "; " };
            let _ = write!(summary, "{separator}{}", named.join(", "));
            if more > 0 {
                let _ = write!(summary, " and {more} more");
            }
            let _ = write!(summary, ": left to the installation of the Lessor {lessor}");
        }
        (!summary.is_empty()).then_some(summary)
    }
}

fn created(lessor: &Lessor) -> Option<Timestamp> {
    lessor.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lessor(name: &str, namespaces: &[&str], created: i64) -> Lessor {
        serde_json::from_value(json!({
            "apiVersion": "lessor.dev/v1alpha1", "kind": "Lessor",
            "metadata": {"name": name, "creationTimestamp": Timestamp::from_second(created).expect("a time")},
            "status": {"namespaces": namespaces},
        }))
        .expect("a lessor")
    }

    fn own(namespaces: &[&str], created: i64) -> Overlap {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let mut overlap = Overlap::new(&Settings { namespaces, ..Settings::default() });
        overlap.observe_own(&lessor("default", &["*"], created));
        overlap
    }

    #[test]
    fn a_namespace_belongs_to_the_installation_that_names_it() {
        let mut everywhere = own(&[], 1);
        assert_eq!((everywhere.left_to("team-a"), everywhere.summary()), (None, None));
        everywhere.observe_other(&lessor("team-a", &["team-a"], 2));
        assert_eq!(everywhere.left_to("team-a"), Some("team-a"));
        assert_eq!(everywhere.left_to("team-b"), None);
        let summary = everywhere.summary().expect("a summary");
        assert_eq!(summary, "team-a: left to the installation of the Lessor team-a");
        let mut named = own(&["team-a"], 2);
        named.observe_other(&lessor("other", &["*"], 1));
        assert_eq!(named.left_to("team-a"), None);
        everywhere.retain(|_| false);
        assert_eq!(everywhere.left_to("team-a"), None);
    }

    #[test]
    fn among_equals_a_namespace_belongs_to_the_older_one() {
        for namespaces in [&["*"][..], &["a", "b"]] {
            let mut older = own(namespaces.strip_prefix(&["*"]).unwrap_or(namespaces), 1);
            older.observe_other(&lessor("other", namespaces, 2));
            assert_eq!((older.left_to("a"), older.left_to("b")), (None, None));
            let mut younger = own(namespaces.strip_prefix(&["*"]).unwrap_or(namespaces), 3);
            younger.observe_other(&lessor("other", namespaces, 2));
            assert_eq!((younger.left_to("a"), younger.left_to("b")), (Some("other"), Some("other")));
        }
        let mut same_second = own(&["a"], 1);
        same_second.observe_other(&lessor("zeta", &["a"], 1));
        assert_eq!(same_second.left_to("a"), None, "by name: default is first");
    }

    #[test]
    fn a_lessor_that_no_replica_has_claimed_yet_claims_no_namespace() {
        let mut overlap = own(&["a"], 2);
        overlap.observe_other(&lessor("other", &[], 1));
        assert_eq!(overlap.left_to("a"), None);
        overlap.observe_other(&lessor("other", &["a"], 1));
        assert_eq!(overlap.left_to("a"), Some("other"));
        // Its settings have changed.
        overlap.observe_other(&lessor("other", &["b"], 1));
        assert_eq!(overlap.left_to("a"), None);
    }

    #[test]
    fn exactly_one_of_several_installations_serves_a_namespace() {
        let namespaces: [&[&str]; 4] = [&["*"], &["*"], &["a", "b"], &["b"]];
        let names = ["w", "x", "y", "z"];
        for namespace in ["a", "b", "c"] {
            let serve = (0..4).filter(|n| {
                let settings = Settings {
                    lessor: names[*n].to_owned(),
                    namespaces: namespaces[*n]
                        .iter()
                        .filter(|of| **of != "*")
                        .map(ToString::to_string)
                        .collect(),
                    ..Settings::default()
                };
                let mut overlap = Overlap::new(&settings);
                for (m, name) in names.iter().enumerate() {
                    let lessor = lessor(name, namespaces[m], 1);
                    if m == *n { overlap.observe_own(&lessor) } else { overlap.observe_other(&lessor) }
                }
                overlap.own.serves(namespace) && overlap.left_to(namespace).is_none()
            });
            assert_eq!(serve.count(), 1, "{namespace}");
        }
    }
}
