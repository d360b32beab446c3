//! `kubectl lease` on a terminal: confirmation and colours.

use std::{
    fs::File,
    io::{Read, Write},
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use lessor_kit::world::{World, until};
use parking_lot::Mutex;
use rustix::{
    fs::OFlags,
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};
use serde_json::json;
use tokio::process::Child;

use crate::{plugin::command, running::lives};

/// A command on a terminal, with its user.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(world: &World, args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::open(command(world, args), environment)
    }

    /// Runs a shell that the terminal controls; `$run` is `kubectl lease run`.
    fn shell(world: &World, shell: &[&str]) -> Self {
        let plugin = command(world, &["run"]);
        let words = [plugin.get_program()].into_iter().chain(plugin.get_args());
        let run = words.map(|word| word.to_str().expect("text")).collect::<Vec<_>>().join(" ");
        let mut setsid = Command::new("setsid");
        // A shell hands down what is ignored where these tests are started, such as SIGINT in the background of a script.
        setsid.args(["--ctty", "--wait", "env", "--default-signal=INT,QUIT"]).args(shell).env("run", run);
        setsid.envs(plugin.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Self::open(setsid, &[("PS1", "$ "), ("HISTFILE", "/dev/null")])
    }

    fn open(mut command: Command, environment: &[(&str, &str)]) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keyboard).expect("a terminal of ours");
        unlockpt(&keyboard).expect("a terminal to use");
        let name = ptsname(&keyboard, Vec::new()).expect("its name");
        let mut options = File::options();
        // Else it could become the terminal that controls these tests.
        options.read(true).write(true).custom_flags(OFlags::NOCTTY.bits().cast_signed());
        let line = options.open(name.to_str().expect("a path")).expect("its line");
        let stream = || Stdio::from(line.try_clone().expect("its line"));
        // Whatever decides over colours where these tests are started; a CI's terminal is believed to have them.
        for decides in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
            command.env_remove(decides);
        }
        command.env("TERM", "xterm").envs(environment.iter().copied());
        command.stdin(stream()).stdout(stream()).stderr(stream());
        command.process_group(0);
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().expect("it starts");
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut light, shown) = (keyboard.try_clone().expect("a screen"), Arc::clone(&screen));
        // Ends with an error when no process has the line open any more.
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(count) = light.read(&mut buffer) {
                shown.lock().extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keyboard, screen }
    }

    /// Waits for the number after this word.
    async fn pid(&self, word: &str) -> String {
        until(&format!("the screen shows a pid, and not only {:?}", self.shows()), async || {
            let shown = format!("\n{}", self.shows());
            let (pid, _) = shown.rsplit_once(&format!("\n{word} "))?.1.split_once('\r')?;
            Some(pid.to_owned())
        })
        .await
    }

    fn shows(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock()).into_owned()
    }

    /// Waits until the screen shows this, which may be a moment after the command has ended.
    async fn wait_for(&self, text: &str) {
        until(&format!("the screen shows {text:?}, and not {:?}", self.shows()), async || {
            self.shows().contains(text).then_some(())
        })
        .await;
    }

    /// Waits until an interactive shell shows its prompt: what is typed before may be lost.
    async fn wait_for_prompt(&self) {
        until(&format!("the shell shows its prompt after {:?}", self.shows()), async || {
            self.shows().ends_with("$ ").then_some(())
        })
        .await;
    }

    fn types(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("typed");
    }

    async fn ends(&mut self) -> ExitStatus {
        self.child.wait().await.expect("an end")
    }
}

#[tokio::test]
async fn a_revoke_shows_what_will_be_removed_and_asks_for_confirmation() {
    let world = World::new("asks").await;
    let _operator = world.primary(&[]).await;
    world.granted("asks", json!({"ttlSeconds": 600})).await;
    world.config_map("shared", json!({"key.lessor.dev/a": "asks"}), &["a", "b"]).await;
    for no in ["n\n", "\n", "maybe\n"] {
        let mut terminal = Terminal::start(&world, &["revoke", "asks"], &[]);
        terminal.wait_for("Revoke this lease and remove everything attached? [y/N] ").await;
        assert!(terminal.shows().contains("configmap/shared"), "{}", terminal.shows());
        terminal.types(no);
        assert_eq!(terminal.ends().await.code(), Some(1));
        terminal.wait_for("nothing was revoked").await;
    }
    assert_eq!(world.keys("shared").await, ["a", "b"]);
    let mut terminal = Terminal::start(&world, &["revoke", "asks"], &[]);
    terminal.wait_for("[y/N]").await;
    terminal.types("y\n");
    assert_eq!(terminal.ends().await.code(), Some(0), "{}", terminal.shows());
    assert_eq!(world.keys("shared").await, ["b"]);
}

#[tokio::test]
async fn colours_are_used_on_terminals_unless_refused() {
    let world = World::new("colours").await;
    let _operator = world.primary(&[]).await;
    world.granted("green", json!({"ttlSeconds": 600})).await;
    let shows = async |environment: &[(&str, &str)]| {
        let mut terminal = Terminal::start(&world, &["list"], environment);
        terminal.wait_for("green").await;
        terminal.ends().await;
        terminal.shows()
    };
    assert!(shows(&[]).await.contains("\x1b[32mGranted\x1b[0m"));
    assert!(!shows(&[("NO_COLOR", "1")]).await.contains('\x1b'));
    assert!(!shows(&[("TERM", "dumb")]).await.contains('\x1b'));
    let piped = crate::plugin::lease(&world, &["list"]).await.out;
    assert!(piped.contains("Granted") && !piped.contains('\x1b'));
}

#[tokio::test]
async fn a_command_on_a_terminal_reads_from_it_and_is_stopped_with_its_group() {
    let world = World::new("typing").await;
    let _operator = world.primary(&[]).await;
    let args = ["run", "typing", "--ttl", "1h", "--grace", "3s", "--", "sh", "-c", READS_AND_STARTS];
    let mut terminal = Terminal::start(&world, &args, &[]);
    terminal.wait_for("granted for 1h").await;
    terminal.types("hello\n");
    terminal.wait_for("got hello").await;
    let pid = terminal.pid("child").await;
    world.revoke("typing").await;
    assert_eq!(terminal.ends().await.code(), Some(124), "{}", terminal.shows());
    ended(&pid).await;
}

#[tokio::test]
async fn a_command_in_a_pipeline_of_a_script_is_stopped_with_all_that_it_started() {
    let world = World::new("piped").await;
    let _operator = world.primary(&[]).await;
    // The other process is the script's, and not the command's.
    let script = format!(
        "sleep 300 & echo hello | $run piped --ttl 1h -- sh -c '{READS_AND_STARTS}'; echo status $?; \
         kill -0 $! && echo other lives; kill $!"
    );
    let mut terminal = Terminal::shell(&world, &["sh", "-c", &script]);
    terminal.wait_for("got hello").await;
    let pid = terminal.pid("child").await;
    world.revoke("piped").await;
    terminal.wait_for("status 124").await;
    terminal.wait_for("other lives").await;
    terminal.ends().await;
    ended(&pid).await;
}

#[tokio::test]
async fn a_script_gets_its_terminal_back_from_a_command_that_is_stopped() {
    let world = World::new("script").await;
    let _operator = world.primary(&[]).await;
    let script = format!(
        "$run script --ttl 1h -- sh -c '{READS_AND_STARTS}'; echo status $?; read word; echo then $word"
    );
    let mut terminal = Terminal::shell(&world, &["sh", "-c", &script]);
    terminal.wait_for("granted for 1h").await;
    terminal.types("hello\n");
    terminal.wait_for("got hello").await;
    let pid = terminal.pid("child").await;
    world.revoke("script").await;
    terminal.wait_for("status 124").await;
    terminal.types("more\n");
    terminal.wait_for("then more").await;
    assert_eq!(terminal.ends().await.code(), Some(0), "{}", terminal.shows());
    ended(&pid).await;
}

#[tokio::test]
async fn a_command_that_opens_the_terminal_by_itself_gets_it() {
    let world = World::new("opens").await;
    let _operator = world.primary(&[]).await;
    let script =
        "echo no | $run opens --ttl 1h -- sh -c 'read word < /dev/tty; echo got $word'; echo status $?";
    let mut terminal = Terminal::shell(&world, &["sh", "-c", script]);
    terminal.wait_for("granted for 1h").await;
    terminal.types("hello\n");
    terminal.wait_for("got hello").await;
    terminal.wait_for("status 0").await;
    assert_eq!(terminal.ends().await.code(), Some(0), "{}", terminal.shows());
}

#[tokio::test]
async fn keys_of_an_interactive_shell_suspend_continue_and_interrupt_a_command() {
    let world = World::new("keys").await;
    let _operator = world.primary(&[]).await;
    for (name, input) in [("typed", ""), ("piped", "sleep 300 | ")] {
        let mut terminal = Terminal::shell(&world, &["bash", "--norc", "--noprofile", "-i"]);
        terminal
            .types(&format!("{input}$run {name} --ttl 1h -- sh -c 'echo pid $$; sleep 300; echo never'\n"));
        let pid = terminal.pid("pid").await;
        let state = async |letter: &str| {
            until(&format!("{pid} is {letter}: {}", terminal.shows()), async || {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
                stat.rsplit_once(") ")?.1.starts_with(letter).then_some(())
            })
            .await;
        };
        state("S").await;
        let mut keyboard = terminal.keyboard.try_clone().expect("a keyboard");
        let mut types = |text: &str| keyboard.write_all(text.as_bytes()).expect("typed");
        types("\x1a");
        state("T").await;
        terminal.wait_for("Stopped").await;
        terminal.wait_for_prompt().await;
        types("fg\n");
        state("S").await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        types("\x03");
        world.wait_gone(name).await;
        ended(&pid).await;
        terminal.wait_for_prompt().await;
        types("echo status $?\n");
        terminal.wait_for("status 130").await;
        types("exit\n");
        terminal.ends().await;
        assert!(!terminal.shows().contains("\nnever"), "{}", terminal.shows());
    }
}

/// A script that reads a word, and starts another process.
const READS_AND_STARTS: &str = "read word; echo got $word; sleep 300 & echo child $!; wait";

async fn ended(pid: &str) {
    until(&format!("{pid} has ended"), async || (!lives(pid)).then_some(())).await;
}
