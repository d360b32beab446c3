//! Sends requests to the API server, each once and within its time limit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use http::header::{ACCEPT, CONTENT_TYPE};
use kube::{
    Api, Client, Error, Resource,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{PartialObjectMeta, Status},
};
use lessor_api::{
    Key, Lease, Lessor, attachment::Propagation, lease::TERM_MESSAGE, lessor::LessorSpec,
    recorded::GRANT_MANAGER,
};
use lessor_core::{
    decide::removal::Removal,
    index::{attachments::ObjectId, sources::SourceKind},
    lease_object::{NamespacedName, ResourceVersion},
    replica::Ticket,
    request::{FIELD_MANAGER, Request, RequestError, Response},
};
use serde_json::{Value, json};
use tokio::{
    task::{AbortHandle, JoinError, JoinSet},
    time::Instant,
};
use tracing::{Instrument, Span, field::Empty};
use uuid::Uuid;

use super::{metrics::Metrics, removal_patch};
use crate::{
    connectivity::{outage::describe, retry_after},
    watch::source_object::{Heartbeat, PodState},
};

/// The requests of a replica that have no response yet.
pub struct RequestsInFlight {
    api: ApiClient,
    metrics: Metrics,
    tasks: JoinSet<(Ticket, Response)>,
    by_ticket: HashMap<Ticket, AbortHandle>,
}

impl RequestsInFlight {
    /// No requests yet.
    pub fn new(api: ApiClient, metrics: Metrics) -> Self {
        Self { api, metrics, tasks: JoinSet::new(), by_ticket: HashMap::new() }
    }

    /// Sends a request, which gets a response by this time.
    pub fn send(&mut self, ticket: Ticket, request: Request, by: Instant) {
        let (api, metrics) = (self.api.clone(), self.metrics.clone());
        let exchange = async move {
            let (verb, sent) = (request.verb(), Instant::now());
            let span = span(&request);
            let response = api.send(request, by).instrument(span.clone()).await;
            span.record("outcome", response.outcome());
            metrics.request(verb, &response, sent.elapsed());
            (ticket, response)
        };
        self.by_ticket.insert(ticket, self.tasks.spawn(exchange));
    }

    /// Gives a request up. It gets no response.
    pub fn cancel(&mut self, ticket: Ticket) {
        if let Some(task) = self.by_ticket.remove(&ticket) {
            task.abort();
        }
    }

    /// Waits for the next response. `None` when no request is in flight. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<(Ticket, Response), JoinError>> {
        loop {
            match self.tasks.join_next().await? {
                Ok((ticket, response)) => {
                    self.by_ticket.remove(&ticket);
                    return Some(Ok((ticket, response)));
                }
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// The span of a request in a trace: what was sent about which object, and the outcome.
fn span(request: &Request) -> Span {
    let verb = request.verb();
    tracing::debug_span!(
        "request",
        otel.name = verb,
        otel.kind = "client",
        verb,
        lease = request.lease().map(tracing::field::display),
        object = request.object().map(tracing::field::display),
        outcome = Empty,
    )
}

/// Translates requests of the core to the Kubernetes API.
#[derive(Clone)]
pub struct ApiClient {
    client: Client,
    lessor: String,
}

impl ApiClient {
    /// Uses the `Lessor` of this name. `client` must not retry: a decision may be obsolete by the time of a retry.
    pub fn new(client: Client, lessor: impl Into<String>) -> Self {
        Self { client, lessor: lessor.into() }
    }

    /// Sends a request, and waits for its response until `by`. After `by` it sends nothing: the process may have been paused since
    /// the decision.
    pub async fn send(&self, request: Request, by: Instant) -> Response {
        let too_late = || Response::Refused(RequestError::NoAnswer("none within the time limit".to_owned()));
        if Instant::now() >= by {
            return too_late();
        }
        let exchange = retry_after::noting(self.exchange(request));
        match tokio::time::timeout_at(by, exchange).await {
            Ok((Ok(response), _)) => response,
            Ok((Err(error), retry_after)) => response_of(error, retry_after),
            Err(_) => too_late(),
        }
    }

    async fn exchange(&self, request: Request) -> Result<Response, Error> {
        let write_as =
            |name: &str| PatchParams { field_manager: Some(name.to_owned()), ..PatchParams::default() };
        let write = write_as(FIELD_MANAGER);
        let lessors = || Api::<Lessor>::all(self.client.clone());
        let leases = |namespace: &str| Api::<Lease>::namespaced(self.client.clone(), namespace);
        Ok(match request {
            Request::ReadLessor => Response::Lessor(Box::new(lessors().get(&self.lessor).await?)),
            Request::CreateLessor => {
                let params =
                    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
                Response::Lessor(Box::new(
                    lessors().create(&params, &Lessor::new(&self.lessor, LessorSpec::default())).await?,
                ))
            }
            Request::WriteLessor { version, status } => {
                let patch = json!({"metadata": {"resourceVersion": version.to_string()}, "status": status});
                Response::Lessor(Box::new(
                    lessors().patch_status(&self.lessor, &write, &Patch::Merge(patch)).await?,
                ))
            }
            Request::ReadLease { lease } => {
                Response::Lease(Box::new(leases(&lease.namespace).get(&lease.name).await?))
            }
            Request::SetFinalizers { lease, uid, version, finalizers } => {
                let patch = json!({"metadata": {
                    "uid": uid.to_string(), "resourceVersion": version.to_string(), "finalizers": finalizers,
                }});
                let api = leases(&lease.namespace);
                Response::Lease(Box::new(api.patch(&lease.name, &write, &Patch::Merge(patch)).await?))
            }
            Request::WriteStatus { lease, uid, version, status, grants } => {
                let patch = json!({
                    "metadata": {"uid": uid.to_string(), "resourceVersion": version.to_string()},
                    "status": status,
                });
                let write = if grants { write_as(GRANT_MANAGER) } else { write };
                let api = leases(&lease.namespace);
                Response::Lease(Box::new(api.patch_status(&lease.name, &write, &Patch::Merge(patch)).await?))
            }
            Request::DeleteLease { lease, uid } => {
                let preconditions = Preconditions { uid: Some(uid.to_string()), resource_version: None };
                let params = DeleteParams::background().preconditions(preconditions);
                let deleted = leases(&lease.namespace).delete(&lease.name, &params).await?;
                deleted.either(|lease| Response::Lease(Box::new(lease)), |_| Response::Deleted)
            }
            Request::ReadSource { source } => {
                let NamespacedName { namespace, name } = &source.name;
                let source_state = match source.kind {
                    SourceKind::Pod => Api::<PodState>::namespaced(self.client.clone(), namespace)
                        .get(name)
                        .await?
                        .source_state(),
                    SourceKind::CoordinationLease | SourceKind::Node | SourceKind::Lease => {
                        Api::<Heartbeat>::namespaced(self.client.clone(), namespace)
                            .get(name)
                            .await?
                            .source_state()
                    }
                };
                let unreadable = || {
                    Response::Refused(RequestError::Invalid(
                        "it lacks metadata that every object has".to_owned(),
                    ))
                };
                source_state.map_or_else(unreadable, |source_state| Response::Source(Box::new(source_state)))
            }
            Request::ReadObject { object } => {
                let meta = self.objects(&object).get_metadata(&object.name.name).await?;
                Response::Object(Box::new(meta.metadata))
            }
            Request::Remove { object, removal: Removal::Delete { uid, version, propagation } } => {
                let preconditions =
                    Preconditions { uid: Some(uid.to_string()), resource_version: Some(version.to_string()) };
                let params = DeleteParams {
                    propagation_policy: Some(match propagation {
                        Propagation::Background => PropagationPolicy::Background,
                        Propagation::Foreground => PropagationPolicy::Foreground,
                        Propagation::Orphan => PropagationPolicy::Orphan,
                    }),
                    preconditions: Some(preconditions),
                    ..DeleteParams::default()
                };
                let deleted = self.objects(&object).delete(&object.name.name, &params).await?;
                deleted.either(|object| Response::Object(Box::new(object.metadata)), |_| Response::Deleted)
            }
            Request::Remove { object, removal: Removal::Keys { patch, .. } } => {
                let api = self.objects(&object);
                let meta: PartialObjectMeta<DynamicObject> =
                    api.patch_metadata(&object.name.name, &write, &Patch::Merge(patch)).await?;
                Response::Object(Box::new(meta.metadata))
            }
            Request::Remove { object, removal: Removal::Members { uid, version, keys, annotations } } => {
                self.remove_members(&object, uid, version, &keys, &annotations).await?
            }
        })
    }

    /// Reads a whole object, and removes members of it, which lie outside of its metadata.
    async fn remove_members(
        &self,
        object: &ObjectId,
        uid: Uuid,
        version: ResourceVersion,
        keys: &BTreeSet<Key>,
        annotations: &BTreeMap<String, String>,
    ) -> Result<Response, Error> {
        let url = DynamicObject::url_path(&object.kind.resource, Some(&object.name.namespace));
        let url = format!("{url}/{}", object.name.name);
        let read = http::Request::get(&url).body(Vec::new()).map_err(Error::HttpError)?;
        let whole: Value = self.client.request(read).await?;
        let patch = match removal_patch::patch(&whole, uid, version, keys, annotations) {
            Ok(patch) => patch,
            Err(refusal) => return Ok(Response::Refused(refusal)),
        };
        let write = http::Request::patch(format!("{url}?fieldManager={FIELD_MANAGER}"))
            .header(ACCEPT, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
            .header(CONTENT_TYPE, "application/json-patch+json")
            .body(patch.to_string().into_bytes())
            .map_err(Error::HttpError)?;
        let meta: PartialObjectMeta<DynamicObject> = self.client.request(write).await?;
        Ok(Response::Object(Box::new(meta.metadata)))
    }

    fn objects(&self, object: &ObjectId) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &object.name.namespace, &object.kind.resource)
    }
}

/// The response to the core for an error of the client.
fn response_of(error: Error, retry_after: Option<Duration>) -> Response {
    let status = match error {
        Error::Api(status) => status,
        Error::Service(error) => return Response::Refused(RequestError::NoAnswer(describe(&*error))),
        error => return Response::Refused(RequestError::NoAnswer(describe(&error))),
    };
    Response::Refused(match status.code {
        404 if names_an_object(&status) => return Response::Gone,
        404 => RequestError::NoSuchKind,
        409 => RequestError::Conflict,
        422 if status.message.contains(TERM_MESSAGE) => RequestError::LowerTerm,
        401 => RequestError::Failing(format!("it refuses the credentials: {}", status.message)),
        403 => RequestError::Forbidden(status.message),
        429 => {
            let details = status.details.as_ref();
            let seconds = details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
            let wait = seconds.map(|seconds| Duration::from_secs(seconds.into())).or(retry_after);
            // The message of a webhook begins with its name.
            if status.message.contains("admission webhook") {
                RequestError::Deferred(wait)
            } else {
                RequestError::Throttled(wait)
            }
        }
        400..500 => RequestError::Invalid(status.message),
        _ => RequestError::Failing(status.message),
    })
}

/// A 404 names the missing object. Where the kind itself is missing, it names none.
fn names_an_object(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::Response;
    use kube::client::Body;
    use lessor_core::{index::attachments::Kind, lease_object::NamespacedName};
    use parking_lot::Mutex;

    use super::*;

    const UID: Uuid = Uuid::from_u128(7);

    /// The body that is sent for a request, as JSON.
    async fn sent(request: Request) -> Value {
        sent_to(request).await.1
    }

    /// The URL and the body that are sent for a request.
    async fn sent_to(request: Request) -> (String, Value) {
        let sent = Arc::new(Mutex::new((String::new(), Value::Null)));
        let taken = Arc::clone(&sent);
        let server = tower::service_fn(move |request: http::Request<Body>| {
            let taken = Arc::clone(&taken);
            async move {
                let to = request.uri().to_string();
                let bytes = request.into_body().collect_bytes().await?;
                *taken.lock() = (to, serde_json::from_slice(&bytes).unwrap_or_default());
                Response::builder()
                    .status(500)
                    .body(Body::from(b"{}".to_vec()))
                    .map_err(tower::BoxError::from)
            }
        });
        let server = ApiClient::new(Client::new(server, "default"), "default");
        server.send(request, Instant::now() + std::time::Duration::from_secs(5)).await;
        let sent = sent.lock();
        sent.clone()
    }

    #[test]
    fn refused_credentials_are_no_missing_right() {
        let refused = |code| {
            let status = Status { code, message: "no".to_owned(), ..Status::default() };
            response_of(Error::Api(Box::new(status)), None).outcome()
        };
        assert_eq!((refused(401), refused(403)), ("failing", "forbidden"));
    }

    #[test]
    fn too_many_requests_for_a_webhook_concern_one_object_alone() {
        use lessor_core::request::Response as Answer;
        let refused = |message: &str| {
            let status = Status { code: 429, message: message.to_owned(), ..Status::default() };
            response_of(Error::Api(Box::new(status)), Some(Duration::from_secs(7)))
        };
        let wait = Some(Duration::from_secs(7));
        let webhook = refused("admission webhook \"quota.example.com\" denied the request: later");
        let own = refused("too many requests, please try again later");
        assert!(matches!(webhook, Answer::Refused(RequestError::Deferred(after)) if after == wait));
        assert!(matches!(own, Answer::Refused(RequestError::Throttled(after)) if after == wait));
    }

    #[tokio::test]
    async fn the_header_retry_after_is_read() {
        let server = tower::service_fn(|_: http::Request<Body>| async {
            let busy = Response::builder().status(429).header("Retry-After", "3");
            busy.body(Body::from(b"busy".to_vec())).map_err(tower::BoxError::from)
        });
        let connectivity = crate::connectivity::Connectivity::new();
        let client = Client::new(tower::Layer::layer(&connectivity, server), "default");
        let answer = ApiClient::new(client, "default")
            .send(Request::ReadLessor, Instant::now() + Duration::from_secs(5))
            .await;
        let lessor_core::request::Response::Refused(RequestError::Throttled(wait)) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(wait, Some(Duration::from_secs(3)));
    }

    #[tokio::test]
    async fn a_grant_has_its_own_field_manager() {
        let lease = NamespacedName::new("shop", "cart");
        for (grants, manager) in [(true, "lessor-grant"), (false, "lessor")] {
            let lease = lease.clone();
            let write = Request::WriteStatus { lease, uid: UID, version: 42, status: json!({}), grants };
            let (to, _) = sent_to(write).await;
            assert!(to.ends_with(&format!("fieldManager={manager}")), "{to}");
        }
    }

    #[tokio::test]
    async fn a_write_is_bound_to_the_uid_and_version_of_its_decision() {
        let lease = NamespacedName::new("shop", "cart");
        let object =
            ObjectId { kind: Arc::new(Kind::config_map()), name: NamespacedName::new("shop", "cart") };
        let status = json!({"term": 3});
        let writes = [
            Request::SetFinalizers { lease: lease.clone(), uid: UID, version: 42, finalizers: Vec::new() },
            Request::WriteStatus { lease, uid: UID, version: 42, status, grants: false },
        ];
        for write in writes {
            let metadata = &sent(write.clone()).await["metadata"];
            assert_eq!(metadata["uid"], UID.to_string(), "{write:?}");
            assert_eq!(metadata["resourceVersion"], "42", "{write:?}");
        }
        let removal = Removal::Delete { uid: UID, version: 42, propagation: Propagation::Background };
        let preconditions = &sent(Request::Remove { object, removal }).await["preconditions"];
        assert_eq!(preconditions, &json!({"uid": UID.to_string(), "resourceVersion": "42"}));
        let claim = sent(Request::WriteLessor { version: 42, status: json!({"term": 3}) }).await;
        assert_eq!(claim["metadata"]["resourceVersion"], "42");
    }

    #[tokio::test]
    async fn the_deletion_of_a_released_lease_is_bound_to_its_uid() {
        let delete =
            sent(Request::DeleteLease { lease: NamespacedName::new("shop", "cart"), uid: UID }).await;
        assert_eq!(delete["preconditions"], json!({"uid": UID.to_string()}));
    }
}
