//! A terminal with a program in it, for tests of what people type.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::engine::eventually;

pub struct Terminal {
    master: std::fs::File,
    child: Child,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    /// Starts a program in a new terminal of this size, which is its controlling one.
    pub fn start(program: &Command, columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
        let mut command = Command::new("setsid");
        command.args(["--wait", "--ctty"]).arg(program.get_program()).args(program.get_args());
        command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        let master = std::fs::File::from(master);
        let terminal = |child| Self { master: master.try_clone().unwrap(), child, seen: Arc::default() };
        resize(&master, columns, rows);
        let terminal = terminal(command.spawn().expect("setsid can be started"));
        let (seen, mut from) = (terminal.seen.clone(), master);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                seen.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        terminal
    }

    pub fn enter(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        resize(&self.master, columns, rows);
    }

    pub fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().unwrap()).into_owned()
    }

    pub fn shows(&self, words: &str) {
        let mut last = String::new();
        let what = format!("the terminal shows {words:?}");
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(&what, || {
                last = self.seen();
                last.contains(words)
            });
        }));
        assert!(shown.is_ok(), "{what}; it shows:\n{last}");
    }

    pub fn ends(mut self) -> ExitStatus {
        let mut ended = None;
        eventually("the program in the terminal ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn resize(master: &std::fs::File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(master, size).unwrap();
}
