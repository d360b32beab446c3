//! What one replica makes of very many leases, each with an attached ConfigMap, where nothing else takes time: a server that
//! only plays back what a real one would show. Beside it, what kube's own reflector makes of the same. At last many leases come
//! and go: whatever memory they leave behind shows.
//!
//! `cargo bench --bench memory`; `-- --sizes 100000 --churn 0` for a smaller run. `cargo bench --bench cluster -- --only sizes` measures
//! the same on a real API server.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a program for people, which may fail by panicking"
)]

#[path = "bed/mod.rs"]
mod bed;

use std::{
    convert::Infallible,
    env, fs,
    process::{Child, Command},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, reflector, watcher},
};
use lessor_api::Lease;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep},
};

/// How long a process is left alone before its memory is looked at.
const SETTLED: Duration = Duration::from_secs(3);
/// Events sent at once, as a server under load would.
const AT_ONCE: usize = 64;
/// How many of those that come and go are there at a time.
const LIVING: usize = 1000;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    match env::var("LESSOR_BENCH_REFLECTOR") {
        Ok(server) => runtime.block_on(reflect(&server)),
        Err(_) => runtime.block_on(measure()),
    }
}

/// What is there in one round.
#[derive(Clone, Copy)]
struct Leases {
    /// To stay.
    stay: usize,
    /// Come and go, when the others have been seen.
    pass: usize,
}

/// The rounds, in turn: ever more that stay; and few that stay, while few, more and very many come and go.
fn rounds() -> Vec<Leases> {
    let argument = |name: &str, default: &str| {
        let given = env::args().skip_while(|argument| argument != name).nth(1);
        given.unwrap_or_else(|| default.to_owned())
    };
    let number =
        |text: &str| text.parse().expect("--sizes and --churn take numbers, with commas between them");
    let (sizes, churn) = (argument("--sizes", "0,10000,100000"), argument("--churn", "10000,100000,400000"));
    let stay = sizes.split(',').map(|size| Leases { stay: number(size), pass: 0 });
    let pass = churn.split(',').map(|churn| Leases { stay: LIVING, pass: number(churn) });
    stay.chain(pass.filter(|leases| leases.pass > 0)).collect()
}

async fn measure() {
    println!(
        "| | leases, one object each | that come and go | resident | peak | bytes for each pair | until ready | processor time | for each pair | processor time in all |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for whose in ["lessor", "kube's reflector"] {
        let mut empty: Option<(f64, Duration)> = None;
        for leases in rounds() {
            let served = serve(leases).await;
            let round = watch(whose, &served).await;
            let (base, idle) = *empty.get_or_insert((round.resident, round.used));
            let Leases { stay, pass } = leases;
            let each = |figure: f64| if stay > 0 { figure / stay as f64 } else { 0.0 };
            println!(
                "| {whose} | {stay} | {pass} | {:.1} MB | {:.1} MB | {:.0} | {:.2} s | {:.2} s | {:.1} µs | {:.1} s |",
                round.resident,
                round.peak,
                each((round.resident - base) * 1024.0 * 1024.0),
                round.ready.as_secs_f64(),
                round.used.as_secs_f64(),
                each(round.used.saturating_sub(idle).as_secs_f64() * 1e6),
                round.used_in_all.as_secs_f64(),
            );
        }
    }
}

/// What one process showed.
struct Round {
    /// In MB, when everything has been seen.
    resident: f64,
    peak: f64,
    ready: Duration,
    /// Processor time until ready.
    used: Duration,
    /// Processor time until everything had come and gone.
    used_in_all: Duration,
}

async fn watch(whose: &str, server: &str) -> Round {
    let admin = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("its address");
    let directory = env::temp_dir();
    let kubeconfig = directory.join(format!("lessor-bench-{}.yaml", std::process::id()));
    let mut command = if whose == "lessor" {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench",
            "clusters": [{"name": "bench", "cluster": {"server": server}}],
            "users": [{"name": "bench", "user": {}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        });
        fs::write(&kubeconfig, config.to_string()).expect("a file");
        let mut command = Command::new(
            env::var("LESSOR_BENCH_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_lessor").to_owned()),
        );
        command
            .args(["run", "--admin-address", &admin.to_string(), "--kubeconfig"])
            .arg(&kubeconfig)
            .env("RUST_LOG", "off");
        command
    } else {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env("LESSOR_BENCH_REFLECTOR", server).env("ADMIN", admin.to_string());
        command
    };
    let started = Instant::now();
    let process = Stopped(command.spawn().expect("a process"));
    let pid = process.0.id();
    while !is_ready(&admin.to_string()).await {
        sleep(Duration::from_millis(10)).await;
    }
    let (ready, used) = (started.elapsed(), bed::processor_time(pid));
    // Until it has nothing to do.
    let mut before = Duration::ZERO;
    while bed::processor_time(pid) > before {
        before = bed::processor_time(pid);
        sleep(SETTLED).await;
    }
    let _ = fs::remove_file(kubeconfig);
    Round { resident: bed::memory(pid), peak: bed::peak_memory(pid), ready, used, used_in_all: before }
}

/// A process that ends when it isn't needed any more.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn is_ready(admin: &str) -> bool {
    let asking = async {
        let mut stream = TcpStream::connect(admin).await?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer.starts_with("HTTP/1.1 200"))
    };
    asking.await.unwrap_or(false)
}

/// Serves leases with one ConfigMap each.
async fn serve(leases: Leases) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let app = Router::new().fallback(answer).with_state(leases);
    tokio::spawn(async { axum::serve(listener, app).await.expect("a server") });
    format!("http://{address}")
}

async fn answer(State(leases): State<Leases>, request: Request) -> Response {
    let lessor = json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lessor",
        "metadata": {"name": "default", "uid": "0e2b1c7e-95a5-4bb1-8f03-000000000001", "resourceVersion": "1"},
        "status": {"primary": "another_1", "term": 1},
    });
    let Leases { stay, pass } = leases;
    let (object, stay, pass) = match request.uri().path() {
        "/apis/lessor.dev/v1alpha1/lessors" => (lessor, 1, 0),
        "/apis/lessor.dev/v1alpha1/leases" => (lease(), stay, pass),
        "/api/v1/configmaps" => (config_map(), stay, pass),
        "/apis/lessor.dev/v1alpha1/lessors/default" => {
            return ([("content-type", "application/json")], lessor.to_string()).into_response();
        }
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    let bookmark = json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "Bookmark",
        "metadata": {"resourceVersion": "1000000", "annotations": {"k8s.io/initial-events-end": "true"}},
    }});
    // As Go writes it, the type first.
    let line =
        move |kind: &str, number| numbered(&format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"), number);
    let added = line.clone();
    let listed = (0..stay).map(move |number| added("ADDED", number)).chain([format!("{bookmark}\n")]);
    let passing = (0..pass + LIVING).filter(move |_| pass > 0).flat_map(move |number| {
        let comes = (number < pass).then(|| line("ADDED", stay + number));
        let goes = number.checked_sub(LIVING).map(|number| line("DELETED", stay + number));
        comes.into_iter().chain(goes)
    });
    let lines = stream::iter(listed.chain(passing)).chunks(AT_ONCE);
    let lines = lines.map(|lines| Ok::<_, Infallible>(lines.concat())).chain(stream::pending());
    Response::new(Body::from_stream(lines))
}

/// Puts a number, and what follows from it, into the text of an object.
fn numbered(text: &str, number: usize) -> String {
    let end = format!("{:012x}", number as u64 * 2_654_435_761 % (1 << 40));
    text.replace("service-N", &format!("service-{number:06}-5d8f7c9b4"))
        .replace("0000000000AA", &end)
        .replace("\"1000VV\"", &format!("\"{}\"", 1000 + number))
}

/// Rounded to seconds, as the server writes it.
const TIME: &str = "2026-11-29T12:00:00Z";

/// A lease as a real server shows it.
fn lease() -> serde_json::Value {
    json!({
        "apiVersion": "lessor.dev/v1alpha1", "kind": "Lease",
        "metadata": {
            "creationTimestamp": TIME, "finalizers": ["lessor.dev/revoke"], "generation": 1,
            "managedFields": [
                {
                    "apiVersion": "lessor.dev/v1alpha1", "fieldsType": "FieldsV1", "manager": "holder",
                    "fieldsV1": {"f:spec": {
                        ".": {}, "f:afterExpiry": {}, "f:holder": {}, "f:renewTime": {}, "f:suspend": {}, "f:ttlSeconds": {},
                    }},
                    "operation": "Update", "time": TIME,
                },
                {
                    "apiVersion": "lessor.dev/v1alpha1", "fieldsType": "FieldsV1", "manager": "lessor",
                    "fieldsV1": {"f:metadata": {"f:finalizers": {".": {}, "v:\"lessor.dev/revoke\"": {}}}},
                    "operation": "Update", "time": TIME,
                },
                {
                    "apiVersion": "lessor.dev/v1alpha1", "fieldsType": "FieldsV1", "manager": "lessor",
                    "fieldsV1": {"f:status": {
                        "f:attached": {".": {}, "f:keys": {}, "f:objects": {}},
                        "f:conditions": {".": {}, "k:{\"type\":\"Active\"}": {
                            ".": {}, "f:lastTransitionTime": {}, "f:message": {},
                            "f:reason": {}, "f:status": {}, "f:type": {},
                        }},
                        "f:expiryTime": {}, "f:fencingToken": {}, "f:grantTime": {}, "f:grantedTTLSeconds": {},
                        "f:specGeneration": {}, "f:primary": {}, "f:term": {},
                    }},
                    "operation": "Update", "subresource": "status", "time": TIME,
                },
            ],
            "name": "service-N", "namespace": "services", "resourceVersion": "1000VV",
            "uid": "0e2b1c7e-95a5-4bb1-8f01-0000000000AA",
        },
        "spec": {
            "afterExpiry": "Delete", "holder": "node-17.example.com", "renewTime": "2026-11-29T12:00:00.123456Z",
            "suspend": false, "ttlSeconds": 9_000_000,
        },
        "status": {
            "attached": {"keys": 0, "objects": 1},
            "conditions": [{
                "lastTransitionTime": TIME, "message": "granted for 9000000 s from each renewal",
                "reason": "Granted", "status": "True", "type": "Active",
            }],
            "expiryTime": "2027-03-13T16:00:00.000000Z", "fencingToken": 1000, "grantTime": "2026-11-29T12:00:00.000000Z",
            "grantedTTLSeconds": 9_000_000, "specGeneration": 1, "primary": "another_1", "term": 1,
        },
    })
}

/// The metadata of a ConfigMap as a real server shows it.
fn config_map() -> serde_json::Value {
    json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {
            "annotations": {"lessor.dev/lease": "service-N"}, "creationTimestamp": TIME,
            "managedFields": [{
                "apiVersion": "v1", "fieldsType": "FieldsV1", "manager": "holder",
                "fieldsV1": {
                    "f:data": {".": {}, "f:address": {}},
                    "f:metadata": {"f:annotations": {".": {}, "f:lessor.dev/lease": {}}},
                },
                "operation": "Update", "time": TIME,
            }],
            "name": "service-N", "namespace": "services", "resourceVersion": "1000VV",
            "uid": "0e2b1c7e-95a5-4bb1-8f02-0000000000AA",
        },
    })
}

/// What a controller usually does: it keeps what it watches in reflectors.
async fn reflect(server: &str) {
    let client = Client::try_from(Config::new(server.parse().expect("an address"))).expect("a client");
    let config = || watcher::Config::default().streaming_lists();
    let (leases, writer) = reflector::store();
    let leases_seen = watcher(Api::<Lease>::all(client.clone()), config())
        .map_ok(|event| event.modify(|lease| lease.metadata.managed_fields = None))
        .reflect(writer);
    let (maps, writer) = reflector::store();
    let maps_seen = watcher(Api::<PartialObjectMeta<ConfigMap>>::all(client), config())
        .map_ok(|event| event.modify(|map| map.metadata.managed_fields = None))
        .reflect(writer);
    tokio::spawn(leases_seen.for_each(async |_| {}));
    tokio::spawn(maps_seen.for_each(async |_| {}));
    leases.wait_until_ready().await.expect("leases");
    maps.wait_until_ready().await.expect("objects");
    let listener = TcpListener::bind(env::var("ADMIN").expect("an address")).await.expect("a port");
    axum::serve(listener, Router::new().fallback(|| async {})).await.expect("a server");
}
