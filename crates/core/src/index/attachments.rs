//! What is attached to which lease: an index of objects by the names of leases that their annotations give.
//!
//! An annotation names a lease whether or not there is one yet, so the index knows names only. What a name means is
//! decided at the moment that something is to be removed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    hash::{Hash, Hasher},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lessor_api::{
    Attachments, Key, KeyForm, LeaseName,
    attachment::{KEY_PREFIX, KEYS_ANNOTATION, LEASE_ANNOTATION, PROPAGATION_ANNOTATION, Propagation},
    lease::Attached,
};
use uuid::Uuid;

use crate::{
    interner::Interner,
    listed_keys::ListedKeys,
    metadata::{NamespacedName, ResourceVersion, Unreadable, uid_of, version_of},
    sparse::Sparse,
};

pub use crate::kind::Kind;

/// An object: its kind, namespace and name.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectId {
    /// Its kind.
    pub kind: Arc<Kind>,
    /// Its namespace and name.
    pub name: NamespacedName,
}

/// Hashes the name and the plural only, which nearly identify an object.
impl Hash for ObjectId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.name, &self.kind.resource.plural).hash(state);
    }
}

impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let (kind, others) = (&self.kind.resource, &other.kind.resource);
        (&self.name, &kind.plural, &kind.api_version).cmp(&(&other.name, &others.plural, &others.api_version))
    }
}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.resource.kind.to_lowercase(), self.name)
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a removal fails, and when to try again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hindrance {
    /// A CamelCase reason, for conditions and metrics.
    pub reason: &'static str,
    /// A message for users: what is wrong, and what to do.
    pub message: String,
    /// When to retry though the object hasn't changed; `None`: after a change only. On the replica's clock.
    pub retry_at: Option<Duration>,
    /// How often it was tried.
    pub tries: u32,
}

/// An attached object, as some version of it shows it. There may be very many, most of them attached as a whole, so that the
/// rest is boxed.
#[derive(Clone, Debug, Hash)]
pub struct Object {
    /// Its uid.
    pub uid: Uuid,
    /// The version that this shows.
    pub version: ResourceVersion,
    /// The lease whose end deletes it as a whole.
    pub whole: Option<LeaseName>,
    /// How it is deleted.
    pub propagation: Propagation,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// Whether it has changed since `version`: it must be read before anything is removed.
    pub stale: bool,
    more: Sparse<More>,
}

/// What few objects have.
#[derive(Clone, Debug, Default, PartialEq, Hash)]
struct More {
    keys: BTreeMap<Key, LeaseName>,
    problems: Vec<String>,
    hindrance: Option<Hindrance>,
    /// Whether a removal bound to this version has met a conflict.
    conflicted: bool,
    split: Split,
    /// Our annotations, as they stand, where keys are attached: needed to write what remains of them.
    annotations: BTreeMap<String, String>,
}

static NO_MORE: More = More {
    keys: BTreeMap::new(),
    problems: Vec::new(),
    hindrance: None,
    conflicted: false,
    split: Split { at_most: None, refused: Vec::new(), retried: false, tries: 0 },
    annotations: BTreeMap::new(),
};

/// How the removal of keys is split up once the API server has refused to remove several at once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Split {
    /// How many keys are removed at once; `None`: all.
    at_most: Option<usize>,
    /// The keys that were refused alone, each with the reason for users; the one that is tried again next first.
    refused: Vec<(Key, String)>,
    /// Whether one that was refused is tried again.
    retried: bool,
    /// How often that was.
    tries: u32,
}

impl Split {
    /// The removal of these keys was refused, for this reason.
    fn refuse(&mut self, keys: &BTreeSet<Key>, reason: &str) {
        self.retried = false;
        match keys.first() {
            Some(key) if keys.len() == 1 => self.refused.push((key.clone(), reason.to_owned())),
            _ => self.at_most = Some((keys.len() / 2).max(1)),
        }
    }

    /// A removal has succeeded. If it was refused before, the others may succeed, too. Returns whether the next of them is
    /// tried now.
    fn succeed(&mut self) -> bool {
        self.tries = 0;
        let next = std::mem::take(&mut self.retried) && !self.refused.is_empty();
        if next {
            self.retry();
        } else {
            self.at_most = self.at_most.map(|at_most| at_most.saturating_mul(2));
        }
        next
    }

    /// The first key that was refused is tried again.
    fn retry(&mut self) {
        self.refused.remove(0);
        self.at_most = Some(1);
        self.retried = true;
    }
}

/// What taking in a version of an object changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The leases whose attachments changed.
    pub leases: Vec<NamespacedName>,
    /// Whether something is wrong with its annotations that wasn't before.
    pub new_problems: bool,
}

/// How many refused keys of one object are listed.
const LISTED: usize = 5;

/// Whether an object with these annotations is attached to anything, or means to be.
pub fn is_attached(annotations: &BTreeMap<String, String>) -> bool {
    annotations.contains_key(LEASE_ANNOTATION)
        || annotations.contains_key(KEYS_ANNOTATION)
        || annotations
            .range::<str, _>((Bound::Included(KEY_PREFIX), Bound::Unbounded))
            .next()
            .is_some_and(|(name, _)| name.starts_with(KEY_PREFIX))
}

/// The index.
#[derive(Clone, Debug, Default)]
pub struct AttachmentIndex {
    objects: HashMap<ObjectId, Object>,
    by_lease: HashMap<NamespacedName, Attachees>,
    namespaces: Interner,
}

/// What is attached to one name of a lease: mostly one object.
#[derive(Clone, Debug)]
enum Attachees {
    One(ObjectId),
    Many(Box<Many>),
}

#[derive(Clone, Debug, Default)]
struct Many {
    /// Sorted, so that the same observations lead to the same requests.
    objects: BTreeSet<ObjectId>,
    count: Attached,
    /// The objects that can't be removed, and whether that is retried. Kept, since each removal asks for them.
    hindered: BTreeMap<ObjectId, bool>,
    /// How many of them are retried.
    retried: usize,
}

impl Many {
    fn set_hindered(&mut self, id: &ObjectId, hindered: Option<bool>) {
        let before = match hindered {
            Some(retried) => self.hindered.insert(id.clone(), retried),
            None => self.hindered.remove(id),
        };
        self.retried += usize::from(hindered == Some(true));
        self.retried -= usize::from(before == Some(true));
    }
}

/// The objects attached to a lease that can't be removed.
#[derive(Debug)]
pub struct HinderedObjects<'a> {
    /// The first of them, in order.
    pub first: Vec<(&'a ObjectId, &'a Object)>,
    /// How many there are.
    pub count: usize,
    /// Whether the removal of any of them is retried.
    pub retried: bool,
}

impl AttachmentIndex {
    /// Takes in a version of an object.
    ///
    /// A version older than the one in the index changes nothing. An object that isn't attached is dropped from the index.
    ///
    /// # Errors
    /// [`Unreadable`] when the metadata lacks what every stored object has.
    pub fn apply(&mut self, id: &ObjectId, meta: &ObjectMeta) -> Result<Applied, Unreadable> {
        let version = version_of(meta.resource_version.as_deref())?;
        let known = self.objects.get(id);
        if known.is_some_and(|known| known.version > version) {
            return Ok(Applied::default());
        }
        let Some(annotations) = meta.annotations.as_ref().filter(|annotations| is_attached(annotations))
        else {
            return Ok(Applied { leases: self.forget(id), new_problems: false });
        };
        // The version that the index has already: nothing changed, and a hindrance stays.
        if let Some(known) = self.objects.get_mut(id)
            && known.version == version
        {
            known.stale = false;
            return Ok(Applied::default());
        }
        let ours = [LEASE_ANNOTATION, KEYS_ANNOTATION, PROPAGATION_ANNOTATION];
        let ours: BTreeMap<String, String> = annotations
            .iter()
            .filter(|(name, _)| ours.contains(&name.as_str()) || name.starts_with(KEY_PREFIX))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let object = Object::read(meta, version, ours, &id.kind)?;
        let new_problems = !object.problems().is_empty()
            && self.objects.get(id).is_none_or(|known| known.problems() != object.problems());
        let mut leases = self.forget(id);
        let namespace = self.namespaces.intern(&id.name.namespace);
        let name = NamespacedName { namespace, name: id.name.name.clone() };
        let id = ObjectId { kind: id.kind.clone(), name };
        for (lease, attached) in counts_of(&id, &object) {
            self.link(&lease, &id, attached, is_hindered(&object, &lease.name));
            if !leases.contains(&lease) {
                leases.push(lease);
            }
        }
        self.objects.insert(id, object);
        Ok(Applied { leases, new_problems })
    }

    fn link(&mut self, lease: &NamespacedName, id: &ObjectId, attached: Attached, hindered: Option<bool>) {
        let Some(attachees) = self.by_lease.get_mut(lease) else {
            self.by_lease.insert(lease.clone(), Attachees::One(id.clone()));
            return;
        };
        if let Attachees::One(other) = attachees {
            let object = self.objects.get(other);
            let count = object.map(|object| share_of(object, &lease.name)).unwrap_or_default();
            let mut many = Many { objects: [other.clone()].into(), count, ..Many::default() };
            many.set_hindered(other, object.and_then(|object| is_hindered(object, &lease.name)));
            *attachees = Attachees::Many(Box::new(many));
        }
        if let Attachees::Many(many) = attachees {
            many.objects.insert(id.clone());
            many.set_hindered(id, hindered);
            many.count.objects += attached.objects;
            many.count.keys += attached.keys;
        }
    }

    fn unlink(&mut self, lease: &NamespacedName, id: &ObjectId, attached: Attached) {
        match self.by_lease.get_mut(lease) {
            Some(Attachees::Many(many)) if many.objects.len() > 1 => {
                many.objects.remove(id);
                many.set_hindered(id, None);
                many.count.objects -= attached.objects;
                many.count.keys -= attached.keys;
            }
            _ => drop(self.by_lease.remove(lease)),
        }
    }

    /// Takes in that an object is gone, as of `version` (`None`: as of any version). Returns the leases
    /// that it was attached to.
    pub fn remove(&mut self, id: &ObjectId, version: Option<ResourceVersion>) -> Vec<NamespacedName> {
        match (self.objects.get(id), version) {
            (Some(known), Some(version)) if known.version > version => Vec::new(),
            _ => self.forget(id),
        }
    }

    fn forget(&mut self, id: &ObjectId) -> Vec<NamespacedName> {
        let Some(object) = self.objects.remove(id) else { return Vec::new() };
        let mut leases = Vec::new();
        for (lease, attached) in counts_of(id, &object) {
            self.unlink(&lease, id, attached);
            leases.push(lease);
        }
        leases
    }

    /// The objects of `kind` in a namespace (`None`: in all of them) that a whole listing didn't show, in one order.
    pub fn missing(&self, kind: &Kind, namespace: Option<&str>, shown: &ListedKeys) -> Vec<ObjectId> {
        let mut missing: Vec<ObjectId> = self
            .objects
            .keys()
            .filter(|id| {
                *id.kind == *kind && namespace.is_none_or(|namespace| *id.name.namespace == *namespace)
            })
            .filter(|id| !shown.contains(&id.name))
            .cloned()
            .collect();
        missing.sort_unstable();
        missing
    }

    /// Drops the objects of a kind that is served in another version (`None`: not at all). Returns them, and the leases that they
    /// were attached to.
    pub fn forget_kind(&mut self, name: &str, except: Option<&Kind>) -> (Vec<ObjectId>, Vec<NamespacedName>) {
        let is_old = |kind: &Kind| except != Some(kind) && *kind.name() == *name;
        let mut gone: Vec<ObjectId> = self.objects.keys().filter(|id| is_old(&id.kind)).cloned().collect();
        gone.sort_unstable();
        let leases = gone.iter().flat_map(|id| self.forget(id)).collect();
        (gone, leases)
    }

    /// One object.
    pub fn get(&self, id: &ObjectId) -> Option<&Object> {
        self.objects.get(id)
    }

    /// One object, to note that it has changed.
    pub fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Object> {
        self.objects.get_mut(id)
    }

    /// Notes why an object can't be removed.
    pub fn hinder(&mut self, id: &ObjectId, hindrance: Hindrance) {
        let Some(object) = self.objects.get_mut(id) else { return };
        object.more.change(|more| more.hindrance = Some(hindrance));
        for lease in counts_of(id, object).into_keys() {
            if let Some(Attachees::Many(many)) = self.by_lease.get_mut(&lease) {
                many.set_hindered(id, is_hindered(object, &lease.name));
            }
        }
    }

    /// The removal of these keys of an object was refused: others are tried, or fewer at once.
    pub fn refuse(&mut self, id: &ObjectId, keys: &BTreeSet<Key>, reason: &str) {
        if let Some(object) = self.objects.get_mut(id) {
            object.more.change(|more| more.split.refuse(keys, reason));
        }
    }

    /// Keys of an object were removed. Returns whether another one that was refused before is tried now.
    pub fn removed(&mut self, id: &ObjectId) -> bool {
        match self.objects.get_mut(id).filter(|object| *object.split() != Split::default()) {
            Some(object) => object.more.change(|more| more.split.succeed()),
            None => false,
        }
    }

    /// One of the keys that were refused is tried again.
    pub fn retry_refused(&mut self, id: &ObjectId) {
        if let Some(object) = self.objects.get_mut(id).filter(|object| !object.split().refused.is_empty()) {
            object.more.change(|more| more.split.retry());
        }
    }

    /// What is known of refused keys, to be kept over a version that the operator wrote.
    pub fn take_split(&mut self, id: &ObjectId) -> Option<Split> {
        let object = self.objects.get_mut(id).filter(|object| *object.split() != Split::default())?;
        Some(object.more.change(|more| std::mem::take(&mut more.split)))
    }

    /// See [`take_split`](Self::take_split).
    pub fn put_split(&mut self, id: &ObjectId, mut split: Split) {
        if let Some(object) = self.objects.get_mut(id) {
            split.refused.retain(|(key, _)| object.keys().contains_key(key));
            object.more.change(|more| more.split = split);
        }
    }

    /// The objects attached to a lease that can't be removed, the first `limit` of them listed.
    pub fn hindered(&self, lease: &NamespacedName, limit: usize) -> HinderedObjects<'_> {
        let entry = |id| self.objects.get_key_value(id);
        match self.by_lease.get(lease) {
            Some(Attachees::Many(many)) => HinderedObjects {
                first: many.hindered.keys().take(limit).filter_map(entry).collect(),
                count: many.hindered.len(),
                retried: many.retried > 0,
            },
            one => {
                let one = match one {
                    Some(Attachees::One(id)) => entry(id),
                    _ => None,
                };
                let hindered = one.and_then(|(_, object)| is_hindered(object, &lease.name));
                let first: Vec<_> = one.filter(|_| hindered.is_some()).into_iter().collect();
                HinderedObjects { count: first.len(), first, retried: hindered == Some(true) }
            }
        }
    }

    /// The objects attached to a lease, as a whole or by keys, in order.
    pub fn of(&self, name: &NamespacedName) -> impl Iterator<Item = (&ObjectId, &Object)> {
        let (one, many) = match self.by_lease.get(name) {
            Some(Attachees::One(id)) => (Some(id), None),
            Some(Attachees::Many(many)) => (None, Some(&many.objects)),
            None => (None, None),
        };
        let ids = one.into_iter().chain(many.into_iter().flatten());
        ids.filter_map(|id| self.objects.get_key_value(id))
    }

    /// The names of leases that an object is attached to, as by_name.
    pub fn leases_of(&self, id: &ObjectId) -> Vec<NamespacedName> {
        let object = self.objects.get(id);
        object.into_iter().flat_map(|object| counts_of(id, object)).map(|(lease, _)| lease).collect()
    }

    /// Every object with an annotation of ours.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Object)> {
        self.objects.iter()
    }

    /// Hashes the whole index, in a fixed order.
    pub(crate) fn hash_state(&self, state: &mut impl Hasher) {
        let mut ids: Vec<&ObjectId> = self.objects.keys().collect();
        ids.sort_unstable();
        for id in ids {
            (id, self.objects.get(id)).hash(state);
        }
    }

    /// How many objects and keys are attached to a lease.
    pub fn count(&self, name: &NamespacedName) -> Attached {
        match self.by_lease.get(name) {
            Some(Attachees::One(id)) => {
                self.objects.get(id).map(|object| share_of(object, &name.name)).unwrap_or_default()
            }
            Some(Attachees::Many(many)) => many.count,
            None => Attached::default(),
        }
    }
}

impl Object {
    fn read(
        meta: &ObjectMeta,
        version: ResourceVersion,
        mut annotations: BTreeMap<String, String>,
        kind: &Kind,
    ) -> Result<Self, Unreadable> {
        let mut attachments = Attachments::parse(&annotations, kind.form);
        let mut problems: Vec<String> = attachments.problems.iter().map(ToString::to_string).collect();
        if kind.form == KeyForm::Pointer && !kind.pointers && !attachments.keys.is_empty() {
            attachments.keys.clear();
            problems.push(format!(
                "annotation \"{KEYS_ANNOTATION}\" attaches nothing: of {kind} only whole objects can be attached here; the \
                 operator's setting `--attachable {kind}:pointers` would allow it"
            ));
        }
        // Of those that are attached as a whole there may be very many, and their annotations aren't needed again.
        if attachments.keys.is_empty() {
            annotations = BTreeMap::new();
        }
        let more = Sparse::new(More { keys: attachments.keys, problems, annotations, ..More::default() });
        Ok(Self {
            uid: uid_of(meta.uid.as_deref())?,
            version,
            whole: attachments.whole,
            propagation: attachments.propagation,
            deleting: meta.deletion_timestamp.is_some(),
            stale: false,
            more,
        })
    }

    /// The leases that it is attached to, `id` being what it is called itself; each as often as it is named.
    pub fn leases(&self, id: &ObjectId) -> impl Iterator<Item = NamespacedName> {
        self.whole.iter().chain(self.keys().values()).map(|name| lease_at(id, name))
    }

    fn more(&self) -> &More {
        self.more.get().unwrap_or(&NO_MORE)
    }

    /// The lease whose end removes each key.
    pub fn keys(&self) -> &BTreeMap<Key, LeaseName> {
        &self.more().keys
    }

    /// Its annotations of the operator; empty where no key is attached.
    pub fn annotations(&self) -> &BTreeMap<String, String> {
        &self.more().annotations
    }

    /// What is wrong with its annotations, for people.
    pub fn problems(&self) -> &[String] {
        &self.more().problems
    }

    /// How the removal of its keys is split up.
    pub fn split(&self) -> &Split {
        &self.more().split
    }

    /// Those of these keys that are removed next, at once.
    pub fn next_keys<'a>(&self, due: impl Iterator<Item = &'a Key>) -> BTreeSet<Key> {
        let split = self.split();
        let is_refused = |key: &Key| split.refused.iter().any(|(refused, _)| refused == key);
        due.filter(|key| !is_refused(key)).take(split.at_most.unwrap_or(usize::MAX)).cloned().collect()
    }

    /// Which keys can't be removed, for users.
    pub fn refused_keys(&self) -> Option<String> {
        let refused = &self.split().refused;
        let first: Vec<String> =
            refused.iter().take(LISTED).map(|(key, reason)| format!("key {key}: {reason}")).collect();
        let more = refused.len().checked_sub(LISTED).filter(|more| *more > 0);
        let more = more.map(|more| format!("and {more} more keys"));
        (!refused.is_empty()).then(|| first.into_iter().chain(more).collect::<Vec<_>>().join("; "))
    }

    /// Why it can't be removed.
    pub fn hindrance(&self) -> Option<&Hindrance> {
        self.more().hindrance.as_ref()
    }

    /// Notes that a removal bound to this version has met a conflict. Returns whether one had before: then the object hasn't changed.
    pub fn note_conflict(&mut self) -> bool {
        self.more.change(|more| std::mem::replace(&mut more.conflicted, true))
    }

    /// Whether it is being deleted with the lease of this name, and waits for finalizers of other controllers.
    pub fn waits_for_finalizers(&self, lease: &str) -> bool {
        self.deleting && self.whole.as_ref().is_some_and(|name| name.as_str() == lease)
    }
}

/// Whether an object can't be removed with the lease of this name, and if so, whether that is retried.
fn is_hindered(object: &Object, lease: &str) -> Option<bool> {
    match object.hindrance() {
        Some(hindrance) => Some(hindrance.retry_at.is_some()),
        None => object.waits_for_finalizers(lease).then_some(false),
    }
}

/// The lease that an object names so.
pub(crate) fn lease_at(id: &ObjectId, name: &LeaseName) -> NamespacedName {
    NamespacedName { namespace: id.name.namespace.clone(), name: name.shared() }
}

/// How much of an object is attached to the lease of this name.
fn share_of(object: &Object, lease: &str) -> Attached {
    let is = |name: &LeaseName| name.as_str() == lease;
    let keys = object.keys().values().filter(|name| is(name)).count();
    Attached {
        objects: i64::from(object.whole.as_ref().is_some_and(is)),
        keys: i64::try_from(keys).unwrap_or(i64::MAX),
    }
}

/// The leases that an object is attached to, in order, and what of it to each.
fn counts_of(id: &ObjectId, object: &Object) -> BTreeMap<NamespacedName, Attached> {
    let mut counts: BTreeMap<NamespacedName, Attached> = BTreeMap::new();
    if let Some(name) = &object.whole {
        counts.entry(lease_at(id, name)).or_default().objects += 1;
    }
    for name in object.keys().values() {
        counts.entry(lease_at(id, name)).or_default().keys += 1;
    }
    counts
}
