//! Tests that a program finds by itself: each function with `#[trial]`, wherever its module is.

use std::{pin::Pin, process::ExitCode};

use libtest_mimic::Arguments;

pub use inventory::submit;
pub use libtest_mimic::Trial;

/// A test that runs.
pub type Running = Pin<Box<dyn Future<Output = ()>>>;

/// A function with `#[trial]`.
#[derive(Debug)]
pub struct Function {
    module: &'static str,
    function: &'static str,
    line: u32,
    start: fn() -> Running,
    long: bool,
    ignored: bool,
    not_by_chart: bool,
}

inventory::collect!(Function);

impl Function {
    /// A function at this line of this module.
    pub const fn new(
        module: &'static str,
        function: &'static str,
        line: u32,
        start: fn() -> Running,
    ) -> Self {
        Self { module, function, line, start, long: false, ignored: false, not_by_chart: false }
    }

    /// Lets it start before others, since it takes long.
    pub const fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// Lets it run only with `--ignored`.
    pub const fn ignored(self) -> Self {
        Self { ignored: true, ..self }
    }

    /// Leaves it out where end-to-end tests run with the rights of the chart.
    pub const fn not_by_chart(self) -> Self {
        Self { not_by_chart: true, ..self }
    }

    /// Whether it runs with the rights of the chart, too.
    pub fn is_by_chart(&self) -> bool {
        !self.not_by_chart
    }

    /// Its name, with its module's below the crate.
    pub fn name(&self) -> String {
        let module = self.module.split_once("::").map_or("", |(_, module)| module);
        [module, self.function].join("::").trim_start_matches("::").to_owned()
    }

    /// Calls it.
    pub fn start(&self) -> Running {
        (self.start)()
    }

    /// The test.
    pub fn trial(&'static self) -> Trial {
        trial(self.name(), || self.start()).with_ignored_flag(self.ignored)
    }
}

/// A test of this name, with a runtime of its own.
pub fn trial<F: Future<Output = ()>>(name: String, start: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        runtime.block_on(start());
        Ok(())
    })
}

/// The functions of a crate, by its `module_path!()`: long ones first, then by place.
pub fn of(crate_name: &'static str) -> impl Iterator<Item = &'static Function> {
    let is_of = |function: &&Function| function.module.split("::").next() == Some(crate_name);
    let mut functions: Vec<&Function> = inventory::iter::<Function>().filter(is_of).collect();
    functions.sort_by_key(|function| (!function.long, function.module, function.line));
    functions.into_iter()
}

/// Runs these as the arguments of this program say: so many at once, unless `--test-threads` is there.
pub fn run(at_once: usize, trials: impl IntoIterator<Item = Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(at_once);
    libtest_mimic::run(&arguments, trials.into_iter().collect()).exit_code()
}
