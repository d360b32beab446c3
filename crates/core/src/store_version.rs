//! Whether the API server's storage has gone back to an earlier state: etcd was restored from a backup.
//!
//! Versions only grow. So a read from the storage itself proves it that shows an older version than one that was known when the
//! read was sent. Watches prove nothing, since they are served from caches, and that of another API server may be behind.
//!
//! What a replica knows is worthless then: its watches wait for versions to come, and it takes what they show for outdated. It has
//! to start anew.

use std::fmt;

use crate::metadata::ResourceVersion;

/// The storage has gone back from one version to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WentBack {
    /// The version that was known.
    pub known: ResourceVersion,
    /// The version that was read after that.
    pub found: ResourceVersion,
}

impl fmt::Display for WentBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { known, found } = self;
        write!(
            f,
            "the API server's storage went back from version {known} to {found}, as when etcd is restored from a backup"
        )
    }
}

/// The versions of the storage that are known.
#[derive(Clone, Debug, Default, Hash)]
pub struct StoreVersion {
    /// The newest version that a watch of our own kinds has brought.
    newest: ResourceVersion,
    /// The same, when the watch of the `Lessor` was last interrupted.
    at_interruption: ResourceVersion,
    went_back: Option<WentBack>,
}

impl StoreVersion {
    /// A watch of our own kinds has brought this version.
    pub fn watched(&mut self, version: ResourceVersion) {
        self.newest = self.newest.max(version);
    }

    /// The watch of the `Lessor` was interrupted. What is known by now is older than the list that it begins with again.
    pub fn interrupted(&mut self) {
        self.at_interruption = self.newest;
    }

    /// The watch of the `Lessor` has begun again, with a list that shows the storage at this version.
    pub fn listed(&mut self, found: ResourceVersion) {
        self.compare(self.at_interruption, found);
    }

    /// An object was read in version `found`. It was known in version `known` when the read was sent.
    pub fn compare(&mut self, known: ResourceVersion, found: ResourceVersion) {
        if found < known {
            self.went_back.get_or_insert(WentBack { known, found });
        }
    }

    /// Whether the storage has gone back.
    pub fn went_back(&self) -> Option<WentBack> {
        self.went_back
    }
}
