//! Which watches are needed for the sources that leases follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::source::{Source, SourceKind};

/// Up to so many sources of a kind are watched one by one, and up to so many namespaces each as a whole.
const FEW: usize = 8;

/// One watch: of all sources of a kind, of those in a namespace, or of one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceWatch {
    /// The kind of source.
    pub kind: SourceKind,
    /// The namespace; `None`: all.
    pub namespace: Option<Arc<str>>,
    /// The name; `None`: all.
    pub name: Option<Arc<str>>,
}

impl SourceWatch {
    /// Whether it shows this source.
    pub fn covers(&self, source: &Source) -> bool {
        self.kind == source.kind
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == source.name.namespace)
            && self.name.as_ref().is_none_or(|name| *name == source.name.name)
    }
}

impl fmt::Display for SourceWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |part: &Option<Arc<str>>| part.clone().unwrap_or_else(|| "*".into());
        write!(f, "{}/{}/{}", self.kind.label(), text(&self.namespace), text(&self.name))
    }
}

/// How widely the sources of a kind are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Breadth {
    Objects,
    Namespaces,
    Everywhere,
}

/// The choice of what is watched.
///
/// The more sources are followed, the wider it is watched for them. It becomes no narrower until no source of the kind has followers, so that sources that come and go don't begin watches anew all the time.
#[derive(Clone, Debug, Hash)]
pub struct SourceWatches {
    /// Whether this operator has the right to look at all namespaces at once.
    everywhere: bool,
    breadth: BTreeMap<SourceKind, Breadth>,
}

impl SourceWatches {
    /// Nothing is watched yet.
    pub fn new(everywhere: bool) -> Self {
        Self { everywhere, breadth: BTreeMap::new() }
    }

    /// What is to be watched to see all of these.
    pub fn wanted<'a>(&mut self, sources: impl Iterator<Item = &'a Source> + Clone) -> BTreeSet<SourceWatch> {
        let mut wanted = BTreeSet::new();
        for kind in SourceKind::ALL.into_iter().filter(|kind| kind.switch().is_some()) {
            let sources = sources.clone().filter(|source| source.kind == kind);
            let count = sources.clone().count();
            if count == 0 {
                self.breadth.remove(&kind);
                continue;
            }
            let namespaces: BTreeSet<&Arc<str>> =
                sources.clone().map(|source| &source.name.namespace).collect();
            let enough = match (count, namespaces.len()) {
                (..=FEW, _) => Breadth::Objects,
                (_, ..=FEW) => Breadth::Namespaces,
                _ if self.everywhere => Breadth::Everywhere,
                _ => Breadth::Namespaces,
            };
            let breadth = self.breadth.entry(kind).or_insert(enough);
            *breadth = enough.max(*breadth);
            match breadth {
                Breadth::Objects => wanted.extend(sources.map(|source| SourceWatch {
                    kind,
                    namespace: Some(source.name.namespace.clone()),
                    name: Some(source.name.name.clone()),
                })),
                Breadth::Namespaces => wanted.extend(namespaces.into_iter().map(|namespace| SourceWatch {
                    kind,
                    namespace: Some(namespace.clone()),
                    name: None,
                })),
                Breadth::Everywhere => drop(wanted.insert(SourceWatch { kind, namespace: None, name: None })),
            }
        }
        wanted
    }
}
