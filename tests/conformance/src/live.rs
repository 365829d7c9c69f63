//! Live scenarios: packages of several languages against the real broker, in a child process.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::suite::Verdict;
use crate::testee::{Problems, Program, Testee};

/// So often each side gets the key.
const ROUNDS: usize = 60;

/// The longest that one call may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A real broker, in memory, on a free port of loopback.
pub struct Broker {
    addr: String,
    child: Child,
}

impl Broker {
    /// Starts the program.
    ///
    /// # Errors
    /// It does not begin to listen.
    pub async fn start(program: &str) -> Result<Self> {
        let mut child = Command::new(program)
            .args([
                "serve",
                "--memory",
                "--listen",
                "127.0.0.1:0",
                "--log",
                "error",
            ])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        let mut lines = BufReader::new(child.stdout.take().context("stdout")?).lines();
        let first = timeout(PATIENCE, lines.next_line()).await??;
        let first = first.context("the broker said nothing")?;
        let addr = first.strip_prefix("listening on ").context(first.clone())?;
        Ok(Broker {
            addr: addr.to_owned(),
            child,
        })
    }

    /// Ends it.
    ///
    /// # Errors
    /// The system refuses.
    pub async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Who was in, in which order, as the runner saw it.
#[derive(Default)]
struct History {
    inside: usize,
    last_token: u64,
    problems: Vec<String>,
}

impl History {
    fn enter(&mut self, token: u64) {
        self.inside += 1;
        if self.inside > 1 {
            self.problems.push("two were in at once (S1)".into());
        }
        if token <= self.last_token {
            let last = self.last_token;
            self.problems
                .push(format!("token {token} came after {last} (S3)"));
        }
        self.last_token = token;
    }
}

/// Two packages contend for one key: never both, and tokens rise.
pub async fn contend(broker: &Broker, one: &Program, other: &Program) -> Verdict {
    match timeout(2 * PATIENCE, try_contend(broker, one, other)).await {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(e)) => Verdict::Failed(format!("{e:#}")),
        Err(_) => Verdict::Failed("it hangs".into()),
    }
}

async fn try_contend(broker: &Broker, one: &Program, other: &Program) -> Result<()> {
    let history = Arc::new(Mutex::new(History::default()));
    let key = format!("contended-{}", rand::random::<u32>());
    let sides = [one, other].map(|program| {
        let (program, addr) = (program.clone(), broker.addr.clone());
        let (key, history) = (key.clone(), Arc::clone(&history));
        tokio::spawn(async move { side(&program, &addr, &key, &history).await })
    });
    for side in sides {
        side.await??;
    }
    let history = history.lock().expect("not poisoned");
    match history.problems.first() {
        None => Ok(()),
        Some(problem) => bail!("{problem}"),
    }
}

async fn side(program: &Program, addr: &str, key: &str, history: &Mutex<History>) -> Result<()> {
    let testee = Testee::start(program).await?;
    let caller = Caller {
        testee,
        problems: Problems::default(),
    };
    let fields = [("broker", json!("b")), ("addrs", json!([addr]))];
    caller.call("connect", &fields).await?;
    for round in 0..ROUNDS {
        let ticket = json!(format!("t{round}"));
        let fields = [
            ("broker", json!("b")),
            ("ticket", ticket.clone()),
            ("keys", json!([key])),
            ("wait", json!(30)),
            ("lease", json!(60)),
            ("min_work", json!(5)),
        ];
        let got = caller.call("acquire", &fields).await?;
        let token = got["token"].as_str().context("a token")?.parse()?;
        history.lock().expect("not poisoned").enter(token);
        // Long enough for the other to be seen inside, if it were.
        tokio::task::yield_now().await;
        history.lock().expect("not poisoned").inside -= 1;
        let released = caller.call("release", &[("ticket", ticket)]).await?;
        ensure!(
            released["outcome"] == "Released",
            "round {round}: {released}"
        );
    }
    caller.call("close", &[("broker", json!("b"))]).await?;
    caller.testee.finish().await
}

struct Caller {
    testee: Testee,
    problems: Problems,
}

impl Caller {
    async fn call(&self, op: &str, fields: &[(&str, Value)]) -> Result<Value> {
        let fields = fields
            .iter()
            .cloned()
            .map(|(name, value)| (name.to_owned(), value));
        let fields = Map::from_iter(fields);
        let mut answer = self.testee.call(op, fields, &self.problems).await?;
        let Some((answer, _)) = answer.within(PATIENCE).await? else {
            bail!("{op} was not answered");
        };
        ensure!(answer["ok"].is_object(), "{op}: {answer}");
        Ok(answer["ok"].clone())
    }
}
