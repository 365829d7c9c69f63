//! A testee: a process that does what it is told and says what its package did (`PROTOCOL.md`).

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::time::timeout;

/// The longest that a testee may take to say hello, or to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// What went wrong in a scenario that no single step sees: a second answer, say.
pub type Problems = Arc<Mutex<Vec<String>>>;

/// How a testee is started.
#[derive(Debug, Clone)]
pub struct Program {
    /// The program and its arguments, without the face.
    pub command: Vec<String>,
    /// Environment variables on top of the runner's.
    pub environment: Vec<(String, String)>,
    /// The face that it serves.
    pub face: String,
}

/// What a testee says of itself.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Hello {
    /// The version of `PROTOCOL.md`.
    pub protocol: u64,
    /// The language.
    pub language: String,
    /// The package's version.
    pub version: String,
    /// What the face can do.
    pub capabilities: Vec<String>,
}

/// A running testee.
pub struct Testee {
    /// What it said of itself.
    pub hello: Hello,
    child: AsyncMutex<Child>,
    pid: u32,
    input: AsyncMutex<Option<ChildStdin>>,
    calls: Arc<Calls>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct Calls {
    open: Mutex<HashMap<u64, Call>>,
    errors: Mutex<Vec<String>>,
    stray: Mutex<Vec<String>>,
}

struct Call {
    waiting: Option<oneshot::Sender<(Value, Instant)>>,
    problems: Problems,
}

/// An answer to come. Gone with its testee, it is an error.
pub struct Answer {
    /// The command's id.
    pub id: u64,
    receiver: oneshot::Receiver<(Value, Instant)>,
}

impl Answer {
    /// The answer and when it came, at most so much later; `None` if it did not come in that time.
    ///
    /// # Errors
    /// The testee died.
    pub async fn within(&mut self, time: Duration) -> Result<Option<(Value, Instant)>> {
        match timeout(time, &mut self.receiver).await {
            Err(_) => Ok(None),
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(_)) => bail!("the testee died before it answered"),
        }
    }
}

impl Testee {
    /// Starts a testee and reads its hello.
    ///
    /// # Errors
    /// It can't be started, or says no hello of this protocol.
    pub async fn start(program: &Program) -> Result<Self> {
        let mut command = Command::new(&program.command[0]);
        command
            .args(&program.command[1..])
            .args(["--face", &program.face])
            .envs(program.environment.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {}", program.command[0]))?;
        let calls = Arc::new(Calls::default());
        let errors = BufReader::new(child.stderr.take().context("stderr")?);
        let kept = Arc::clone(&calls);
        tokio::spawn(async move {
            let mut lines = errors.lines();
            while let Ok(Some(line)) = lines.next_line().await {
                kept.errors.lock().expect("not poisoned").push(line);
            }
        });
        let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
        let first = timeout(PATIENCE, lines.next_line()).await;
        let first = first.ok().and_then(Result::ok).flatten();
        let Some(first) = first else {
            bail!("no hello; it said: {}", calls.said());
        };
        let hello: Value = serde_json::from_str(&first).context("the hello is not JSON")?;
        let hello: Hello = serde_json::from_value(hello["hello"].clone()).context("the hello")?;
        if hello.protocol != 1 {
            bail!("protocol {}, this runner speaks 1", hello.protocol);
        }
        let answered = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                answered.answer(&line);
            }
            // Whoever still waits learns that it is gone.
            answered.open.lock().expect("not poisoned").clear();
        });
        Ok(Testee {
            hello,
            pid: child.id().context("it has ended already")?,
            input: AsyncMutex::new(child.stdin.take()),
            child: AsyncMutex::new(child),
            calls,
            next_id: AtomicU64::new(1),
        })
    }

    /// Gives a command; its answer comes later.
    ///
    /// # Errors
    /// The testee does not take it.
    pub async fn call(
        &self,
        op: &str,
        fields: Map<String, Value>,
        problems: &Problems,
    ) -> Result<Answer> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let call = Call {
            waiting: Some(sender),
            problems: Arc::clone(problems),
        };
        self.calls
            .open
            .lock()
            .expect("not poisoned")
            .insert(id, call);
        let mut command = fields;
        command.insert("id".into(), json!(id));
        command.insert("op".into(), json!(op));
        let line = format!("{}\n", Value::Object(command));
        let mut input = self.input.lock().await;
        let input = input.as_mut().context("its input is closed")?;
        let written = input.write_all(line.as_bytes()).await;
        written.with_context(|| format!("the testee is gone; {op} can't be asked"))?;
        input.flush().await?;
        Ok(Answer { id, receiver })
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it wrote to its standard error, the last lines.
    #[must_use]
    pub fn said(&self) -> String {
        self.calls.said()
    }

    /// Whether it wrote this to its standard error.
    #[must_use]
    pub fn has_said(&self, text: &str) -> bool {
        let errors = self.calls.errors.lock().expect("not poisoned");
        errors.iter().any(|line| line.contains(text))
    }

    /// Ends it at once.
    pub async fn kill(&self) {
        let _ = self.child.lock().await.kill().await;
    }

    /// Ends it as its protocol says, by the end of its input; its exit code must be 0.
    ///
    /// # Errors
    /// It does not end in time, or not with 0, or has said things that nobody asked.
    pub async fn finish(&self) -> Result<()> {
        drop(self.input.lock().await.take());
        let mut child = self.child.lock().await;
        let Ok(status) = timeout(PATIENCE, child.wait()).await else {
            let _ = child.kill().await;
            bail!("it did not end within {PATIENCE:?} of the end of its input");
        };
        let status = status?;
        if !status.success() {
            bail!("it ended with {status}; it said: {}", self.said());
        }
        match self.calls.stray.lock().expect("not poisoned").first() {
            None => Ok(()),
            Some(line) => bail!("a line that answers nothing: {line}"),
        }
    }
}

impl Calls {
    fn answer(&self, line: &str) {
        let answer: Value = serde_json::from_str(line).unwrap_or_default();
        let mut open = self.open.lock().expect("not poisoned");
        match answer["id"].as_u64().and_then(|id| open.get_mut(&id)) {
            None => self
                .stray
                .lock()
                .expect("not poisoned")
                .push(line.to_owned()),
            Some(call) => match call.waiting.take() {
                Some(waiting) => drop(waiting.send((answer, Instant::now()))),
                None => call
                    .problems
                    .lock()
                    .expect("not poisoned")
                    .push(format!("a second answer: {line}")),
            },
        }
    }

    fn said(&self) -> String {
        let errors = self.errors.lock().expect("not poisoned");
        errors[errors.len().saturating_sub(20)..].join("\n")
    }
}
