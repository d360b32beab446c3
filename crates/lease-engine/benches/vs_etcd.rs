//! Our lessor and etcd's, side by side: one table, figures and ratios. `benches/run.sh` runs it.
//!
//! Both sides do the same things in the same order, with the same random ids. A figure is CPU time (etcd's
//! with its garbage collector, but a collection comes before each measurement), so that a busy machine
//! falsifies it less, and the best of three rounds. Every size is measured in a process of its own, ours by
//! the program calling itself, etcd's by the Go program in `benches/etcd`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs
)]

use std::{
    collections::BTreeMap,
    env, fs,
    hint::black_box,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use lease_engine::{Config, LeaseEngine, LeaseTime, Ttl};
use rustix::time::{ClockId, clock_gettime};

const SIZES: [usize; 3] = [10_000, 100_000, 1_000_000];
const ROUNDS: usize = 3;
const TTL: Ttl = Ttl::from_secs(3600);

type Figures = BTreeMap<(String, usize), f64>;

fn main() {
    // `cargo bench` adds `--bench`.
    let args: Vec<_> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.first().map(String::as_str) {
        Some("measure") => measure(args[1].parse().expect("a number of leases")),
        _ => compare(),
    }
}

fn compare() {
    let (mut ours, mut etcds) = (Figures::new(), Figures::new());
    let this = env::current_exe().expect("path of this program");
    let go = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/etcd");
    let program = env::temp_dir().join(format!("etcd-lessor-{}", std::process::id()));
    eprintln!("building benches/etcd");
    let built = Command::new("go").args(["build", "-o"]).arg(&program).arg(".").current_dir(go).status();
    assert!(built.expect("go is installed").success(), "can't build benches/etcd");
    for n in SIZES {
        read(&mut ours, Command::new(&this).args(["measure", &n.to_string()]));
        read(&mut etcds, Command::new(&program).arg(n.to_string()));
    }
    let _ = fs::remove_file(program);
    print_table(&ours, &etcds);
}

/// Runs one side and reads its lines: operation, leases, figure.
fn read(figures: &mut Figures, program: &mut Command) {
    let output = program.stderr(Stdio::inherit()).output().expect("the program starts");
    assert!(output.status.success(), "{program:?} failed");
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let [operation, n, figure] = line.split(' ').collect::<Vec<_>>()[..] else { continue };
        figures.insert((operation.to_owned(), n.parse().unwrap()), figure.parse().unwrap());
    }
}

fn print_table(ours: &Figures, etcds: &Figures) {
    let rows = [
        ("grant", "grant"),
        ("attach", "attach"),
        ("attach-number", "attach, of numbers instead of texts"),
        ("renew", "renew"),
        ("renew-alone", "renew, a clock reading for each"),
        ("revoke", "revoke"),
        ("revoke-with-item", "revoke, one item each"),
        ("list", "list, by deadline (per lease)"),
        ("expire", "one deadline for all (per lease)"),
        ("promote", "promote"),
        ("demote", "demote"),
        ("bytes", "memory per lease"),
    ];
    println!("| | leases | ours | etcd | ratio |");
    println!("|---|---:|---:|---:|---:|");
    for (operation, title) in rows {
        for n in SIZES {
            let Some(&mine) = ours.get(&(operation.to_owned(), n)) else { continue };
            let (etcd, note) = match etcds.get(&(operation.to_owned(), n)) {
                Some(&etcd) => (etcd, ""),
                // Its rate is the same at every size.
                None => match etcds.get(&(alike(operation).to_owned(), n)) {
                    Some(&etcd) => (etcd, ""),
                    None => (etcds[&(operation.to_owned(), SIZES[0])], " *"),
                },
            };
            let show = |figure| match operation {
                "bytes" => format!("{figure:.0} B"),
                _ => nanos(figure),
            };
            println!("| {title} | {n} | {} | {}{note} | {:.1} |", show(mine), show(etcd), etcd / mine);
        }
    }
    println!("\n\\* by its rate limit, as measured with {} leases (by the wall clock)", SIZES[0]);
}

/// etcd's figure that this one of ours is compared with.
fn alike(operation: &str) -> &str {
    match operation {
        "renew-alone" => "renew",
        "attach-number" => "attach",
        operation => operation,
    }
}

fn nanos(figure: f64) -> String {
    match figure {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// The best figure of each operation.
struct Best {
    figures: BTreeMap<&'static str, f64>,
    /// What it costs to measure nothing: two readings of a clock of the kernel.
    nothing: Duration,
}

impl Best {
    fn new() -> Self {
        let nothing = (0..1000).map(|_| elapsed(|| ()).1).min().expect("a measurement");
        Self { figures: BTreeMap::new(), nothing }
    }

    /// What disturbs a measurement only makes it slower.
    fn note(&mut self, operation: &'static str, figure: f64) {
        let best = self.figures.entry(operation).or_insert(f64::INFINITY);
        *best = best.min(figure);
    }

    fn time<T>(&mut self, operation: &'static str, per: usize, run: impl FnOnce() -> T) -> T {
        let (result, took) = elapsed(run);
        self.note(operation, took.saturating_sub(self.nothing).as_nanos() as f64 / per as f64);
        result
    }
}

fn elapsed<T>(run: impl FnOnce() -> T) -> (T, Duration) {
    let start = cpu_time();
    let result = run();
    (result, cpu_time() - start)
}

fn measure(n: usize) {
    let (granted, shuffled) = ids(n);
    let mut best = Best::new();
    memory(&mut best, &granted);
    for round in 0..ROUNDS {
        eprintln!("ours: {n} leases, round {} of {ROUNDS}", round + 1);
        time_leases(&mut best, &granted, &shuffled);
        time_items(&mut best, &granted, &shuffled);
        time_expiry(&mut best, &granted);
    }
    for (operation, figure) in best.figures {
        println!("{operation} {n} {figure:.1}");
    }
}

/// The clock as an event loop has it: read once per turn, and a turn under load handles many events.
struct Clock {
    start: Instant,
    per_turn: u32,
    used: u32,
    now: LeaseTime,
}

impl Clock {
    fn read_once_per(per_turn: u32) -> Self {
        Self { start: Instant::now(), per_turn, used: 0, now: LeaseTime::ZERO }
    }

    fn now(&mut self) -> LeaseTime {
        if self.used == 0 {
            self.now = LeaseTime::from_duration(self.start.elapsed());
        }
        self.used = (self.used + 1) % self.per_turn;
        self.now
    }
}

fn primary<K>() -> (LeaseEngine<u64, K>, Clock) {
    let mut engine = LeaseEngine::new(Config::default());
    engine.promote(Duration::ZERO);
    (engine, Clock::read_once_per(64))
}

fn time_leases(best: &mut Best, granted: &[u64], shuffled: &[u64]) {
    let n = granted.len();
    let (mut engine, mut clock) = primary::<()>();
    best.time("grant", n, || {
        for id in granted {
            engine.grant(*id, TTL, clock.now()).unwrap();
        }
    });
    best.time("renew", n, || {
        for id in shuffled {
            black_box(engine.renew(*id, clock.now()).unwrap());
        }
    });
    let mut clock = Clock::read_once_per(1);
    best.time("renew-alone", n, || {
        for id in shuffled {
            black_box(engine.renew(*id, clock.now()).unwrap());
        }
    });
    drop(best.time("list", n, || engine.leases_by_deadline()));
    best.time("revoke", n, || {
        for id in shuffled {
            engine.revoke(*id).unwrap();
        }
    });
}

fn time_items(best: &mut Best, granted: &[u64], shuffled: &[u64]) {
    let n = granted.len();
    let (mut numbers, mut clock) = primary::<u64>();
    for id in granted {
        numbers.grant(*id, TTL, clock.now()).unwrap();
    }
    best.time("attach-number", n, || {
        for (number, id) in (0..).zip(shuffled) {
            numbers.attach(*id, number).unwrap();
        }
    });
    drop(numbers);

    let (mut engine, mut clock) = primary::<String>();
    let keys: Vec<_> = granted.iter().map(|id| format!("{id:016x}")).collect();
    for id in granted {
        engine.grant(*id, TTL, clock.now()).unwrap();
    }
    best.time("attach", n, || {
        for (id, key) in shuffled.iter().zip(keys) {
            engine.attach(*id, key).unwrap();
        }
    });
    best.time("demote", 1, || black_box(&mut engine).demote());
    best.time("promote", 1, || black_box(&mut engine).promote(Duration::ZERO));
    best.time("revoke-with-item", n, || {
        for id in shuffled {
            black_box(engine.revoke(*id).unwrap());
        }
    });
}

/// From the deadline that all have until the last one has been handed out and forgotten.
fn time_expiry(best: &mut Best, granted: &[u64]) {
    let (mut engine, _) = primary::<()>();
    let start = LeaseTime::from_millis(1000);
    for id in granted {
        engine.grant(*id, TTL, start).unwrap();
    }
    let deadline = start + TTL.as_duration();
    best.time("expire", granted.len(), || {
        let mut ended = 0;
        while ended < granted.len() {
            for id in engine.poll(deadline, 1000) {
                engine.ended(id).unwrap();
                ended += 1;
            }
        }
    });
}

/// By the pages that the process holds, so that nothing is left out: unused capacity and the allocator's
/// share count too.
fn memory(best: &mut Best, granted: &[u64]) {
    let before = resident();
    let (mut engine, mut clock) = primary::<()>();
    for id in granted {
        engine.grant(*id, TTL, clock.now()).unwrap();
    }
    best.note("bytes", (resident() - before) as f64 / granted.len() as f64);
    drop(engine);
}

/// What this thread has been computing for: others that use the machine don't count.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().expect("a positive time")
}

fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("resident pages") * 4096
}

/// The same pseudo-random ids as on the other side (splitmix64): as they are granted, and in another order.
fn ids(n: usize) -> (Vec<u64>, Vec<u64>) {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let granted: Vec<_> = (0..n).map(|_| (next() >> 1) | 1).collect();
    let mut shuffled = granted.clone();
    for i in (1..n).rev() {
        shuffled.swap(i, (next() % (i as u64 + 1)) as usize);
    }
    (granted, shuffled)
}
