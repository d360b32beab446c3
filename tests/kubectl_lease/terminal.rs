//! `kubectl lease` on a terminal: confirmation and colours.

use std::{
    fs::File,
    io::{Read, Write},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use lessor_kit::world::{World, until};
use parking_lot::Mutex;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::json;
use tokio::process::Child;

use crate::plugin::command;

/// A command on a terminal, with its user.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(world: &World, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let keyboard = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&keyboard).expect("a terminal of ours");
        unlockpt(&keyboard).expect("a terminal to use");
        let name = ptsname(&keyboard, Vec::new()).expect("its name");
        let line =
            File::options().read(true).write(true).open(name.to_str().expect("a path")).expect("its line");
        let stream = || Stdio::from(line.try_clone().expect("its line"));
        let mut command = command(world, args);
        command.env("TERM", "xterm").env_remove("NO_COLOR").envs(environment.iter().copied());
        command.stdin(stream()).stdout(stream()).stderr(stream());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = tokio::process::Command::from(command).kill_on_drop(true).spawn().expect("it starts");
        let keyboard = File::from(keyboard);
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut light, shown) = (keyboard.try_clone().expect("a screen"), Arc::clone(&screen));
        // Ends with an error when nobody has the line open any more.
        std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            while let Ok(count) = light.read(&mut buffer) {
                shown.lock().extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keyboard, screen }
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
    let script = "read word; echo got $word; sleep 300 & echo child $!; wait";
    let args = ["run", "typing", "--ttl", "1h", "--grace", "3s", "--", "sh", "-c", script];
    let mut terminal = Terminal::start(&world, &args, &[]);
    terminal.wait_for("granted for 1h").await;
    terminal.types("hello\n");
    terminal.wait_for("got hello").await;
    terminal.wait_for("child ").await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let shown = terminal.shows();
    let pid = shown
        .rsplit("child ")
        .next()
        .and_then(|rest| rest.split_whitespace().next())
        .expect("a pid")
        .to_owned();
    world.revoke("typing").await;
    assert_eq!(terminal.ends().await.code(), Some(124), "{}", terminal.shows());
    until("what it started has ended", async || {
        (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })
    .await;
}
