//! Plays one scenario: the testee on one side, the scripted broker on the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use ticketing_wire::{ErrorCode, Reply as WireReply, RequestId, Slot, Token};
use tokio::time::sleep;

use crate::ledger::Ledger;
use crate::peer::{Manners, Order, Peer, Request};
use crate::scenario::{Expected, Frame, Reply, Scenario, Step};
use crate::testee::{Answer, Problems, Testee};
use crate::{leak, storm};

/// The longest that anything may take that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The client token of the scenarios that have one; nothing may show it.
const SECRET: &str = "s3cret-token";

/// One scenario under way.
pub(crate) struct Play<'a> {
    /// Who is tested.
    pub(crate) testee: &'a Testee,
    /// Who it talks to.
    pub(crate) peer: Peer,
    /// What is noted.
    pub(crate) ledger: Arc<Ledger>,
    /// Tells this scenario's names from others'.
    number: u64,
    problems: Problems,
    calls: HashMap<String, Call>,
    requests: HashMap<String, Request>,
    next_token: u64,
}

struct Call {
    answer: Answer,
    began: Instant,
    is_acquire: bool,
}

/// Plays a scenario; `number` is unique for the testee.
///
/// # Errors
/// What did not happen as the scenario says.
pub(crate) async fn play(scenario: &Scenario, testee: &Testee, number: u64) -> Result<()> {
    let ledger = Arc::new(Ledger::default());
    let manners = Manners {
        reject: scenario.reject,
        releases_by_hand: scenario.releases_by_hand,
        lingers: scenario.lingers,
        nodes: scenario.nodes,
    };
    let mut play = Play {
        testee,
        peer: Peer::start(manners, Arc::clone(&ledger)).await?,
        ledger,
        number,
        problems: Arc::new(Mutex::new(Vec::new())),
        calls: HashMap::new(),
        requests: HashMap::new(),
        next_token: number << 20,
    };
    if !scenario.no_connect {
        play.tell("connect", scenario.connect.clone()).await?;
    }
    for (at, step) in scenario.steps.iter().enumerate() {
        let done = play.step(step).await;
        done.with_context(|| format!("step {}: {}", at + 1, brief(step)))?;
    }
    play.end(scenario).await
}

fn brief(step: &Step) -> String {
    let text = format!("{step:?}");
    text.chars().take(120).collect()
}

impl Play<'_> {
    /// The end of every scenario: the ledger is balanced and nothing is left.
    async fn end(mut self, scenario: &Scenario) -> Result<()> {
        let end = Instant::now() + SOON;
        while self.ledger.is_open() && Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
        }
        // Before the close, which ends the sessions and with them what they owe.
        let mut problems = self.ledger.problems();
        if !scenario.no_connect {
            self.tell("close", Map::new()).await.context("closing")?;
        }
        self.peer.all_gone(SOON).await?;
        for (name, mut call) in std::mem::take(&mut self.calls) {
            let answer = call.answer.within(SOON).await?;
            ensure!(answer.is_some(), "{name} was never answered");
        }
        ensure!(
            !self.testee.has_said(SECRET),
            "the client token is in the log (C29)"
        );
        problems.extend(self.ledger.problems());
        problems.extend(self.peer.left_over());
        problems.append(&mut self.problems.lock().expect("not poisoned"));
        match problems.first() {
            None => Ok(()),
            Some(first) => bail!("the ledger: {first}"),
        }
    }

    async fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Call {
                id,
                op,
                times,
                fields,
            } => {
                for (_, id) in numbered(id, *times) {
                    self.call(&id, op, fields.clone(), *times > 0).await?;
                }
                Ok(())
            }
            Step::Answer(expected) => {
                for (_, id) in numbered(&expected.of, expected.times) {
                    self.answer(&id, expected).await?;
                }
                Ok(())
            }
            Step::NoAnswer { of, ms } => {
                let call = self.calls.get_mut(of).context("no such call")?;
                let early = call.answer.within(Duration::from_millis(*ms)).await?;
                ensure!(early.is_none(), "it answered: {early:?}");
                Ok(())
            }
            Step::Expect(frame) => {
                for (n, name) in numbered(&frame.name, frame.times) {
                    let mut frame = frame.clone();
                    if let Some(of) = &frame.of {
                        frame.keys = Some(vec![format!("{of}{n}")]);
                    }
                    let request = self.expect(&frame).await?;
                    self.requests.insert(name, request);
                }
                Ok(())
            }
            Step::ExpectNoAcquire { ms } => {
                let wait = Duration::from_millis(*ms);
                match self.peer.take(Request::is_acquire, wait).await {
                    Err(_) => Ok(()),
                    Ok(request) => bail!("{request:?}"),
                }
            }
            Step::Reply(reply) => {
                for (_, to) in numbered(&reply.to, reply.times) {
                    self.reply(&to, reply).await?;
                }
                Ok(())
            }
            Step::Send { on, hex } => {
                self.peer
                    .order(self.session(on)?, Order::Bytes(bytes(hex)?));
                Ok(())
            }
            Step::End { on, how } => {
                let order = match how.as_str() {
                    "close" => Order::Close,
                    "reset" => Order::Reset,
                    "half" => Order::Half,
                    other => bail!("no way to end: {other}"),
                };
                self.peer.order(self.session(on)?, order);
                Ok(())
            }
            Step::ExpectEnd { on } => self.peer.ended(self.session(on)?, SOON).await,
            Step::Leader { node, slot } => {
                let mut frame = Vec::new();
                let slot = Slot::new(*slot);
                WireReply::Leader { slot }.encode(&mut frame);
                self.peer.tell_node(*node, &frame);
                Ok(())
            }
            Step::ExpectSessions(count) => self.peer.sessions(*count, SOON).await,
            Step::Pause { ms } => {
                sleep(Duration::from_millis(*ms)).await;
                Ok(())
            }
            Step::Stop { ms } => {
                let pid = i32::try_from(self.testee.pid())
                    .ok()
                    .and_then(Pid::from_raw);
                let pid = pid.context("a process id")?;
                kill_process(pid, Signal::STOP)?;
                sleep(Duration::from_millis(*ms)).await;
                kill_process(pid, Signal::CONT)?;
                Ok(())
            }
            Step::Storm { rounds } => storm::storm(self, *rounds).await,
            Step::Leak { rounds } => leak::leak(self, *rounds).await,
        }
    }

    /// Tells the testee to do something and waits for its answer, which must be `ok`.
    ///
    /// # Errors
    /// It is not.
    pub(crate) async fn tell(&mut self, op: &str, fields: Map<String, Value>) -> Result<Value> {
        let mut answer = self.begin(op, op, fields).await?;
        let Some((answer, _)) = answer.within(SOON).await? else {
            bail!("{op} was not answered within {SOON:?}");
        };
        ensure!(answer["error"].is_null(), "{op}: {}", answer["error"]);
        Ok(answer["ok"].clone())
    }

    /// Gives a command, with what it lacks filled in.
    ///
    /// # Errors
    /// The testee does not take it.
    pub(crate) async fn begin(
        &mut self,
        id: &str,
        op: &str,
        mut fields: Map<String, Value>,
    ) -> Result<Answer> {
        let own = |name: &str| json!(format!("{}-{name}", self.number));
        let mut default = |field: &str, value: Value| {
            fields.entry(field).or_insert(value);
        };
        match op {
            "connect" => default("addrs", json!(self.peer.addrs)),
            "fork" => {
                default("addrs", json!(self.peer.addrs));
                self.ledger.called(); // by the child, with what is its own
            }
            "acquire" => {
                default("keys", json!(["k"]));
                default("wait", json!(5));
                default("lease", json!(30));
                default("min_work", json!(0));
                default("ticket", json!(id));
                self.ledger.called();
            }
            "wait_ready" => default("timeout", json!(5)),

            _ => {}
        }
        if matches!(
            op,
            "connect" | "wait_ready" | "acquire" | "stats" | "close" | "fork"
        ) {
            fields.entry("broker").or_insert(json!("b"));
        }
        for name in ["broker", "ticket", "loop", "thread"] {
            if let Some(Value::String(text)) = fields.get(name) {
                let text = own(text);
                fields.insert(name.into(), text);
            }
        }
        if let Some(Value::String(target)) = fields.get("target") {
            let target = self.calls.get(target).context("no such target")?.answer.id;
            fields.insert("target".into(), json!(target));
        }
        self.testee.call(op, fields, &self.problems).await
    }

    async fn call(
        &mut self,
        id: &str,
        op: &str,
        mut fields: Map<String, Value>,
        many: bool,
    ) -> Result<()> {
        if many && op == "acquire" {
            fields.insert("ticket".into(), json!(id));
            fields.entry("keys").or_insert(json!([id]));
        }
        let began = Instant::now();
        let call = Call {
            answer: self.begin(id, op, fields).await?,
            began,
            is_acquire: op == "acquire",
        };
        self.calls.insert(id.to_owned(), call);
        Ok(())
    }

    async fn answer(&mut self, id: &str, expected: &Expected) -> Result<()> {
        let mut call = self.calls.remove(id).context("no such call")?;
        let within = expected.within_ms.map_or(SOON, Duration::from_millis);
        let Some((answer, at)) = call.answer.within(within).await? else {
            bail!("no answer within {within:?}");
        };
        if call.is_acquire
            && let Some(token) = answer["ok"]["token"].as_str()
        {
            self.ledger.reported(token);
        }
        let text = answer.to_string();
        ensure!(
            !text.contains(SECRET),
            "the client token is in {text} (C29)"
        );
        let after = Duration::from_millis(expected.after_ms);
        ensure!(at - call.began >= after, "too early: {answer}");
        if let Some(ok) = &expected.ok {
            ensure!(answer["ok"].is_object(), "not ok: {answer}");
            for (field, wanted) in ok {
                ensure!(
                    fits(&answer["ok"][field], wanted),
                    "{field} is not {wanted}: {answer}"
                );
            }
        }
        if let Some(kinds) = &expected.error {
            let kind = answer["error"]["kind"].as_str().unwrap_or("");
            ensure!(kinds.split('|').any(|k| k == kind), "not {kinds}: {answer}");
            for (field, wanted) in &expected.fields {
                ensure!(
                    fits(&answer["error"][field], wanted),
                    "{field} is not {wanted}: {answer}"
                );
            }
            let message = answer["error"]["message"].as_str().unwrap_or("");
            let says = expected.says.as_deref().unwrap_or("");
            ensure!(message.contains(says), "it does not say {says:?}: {answer}");
        }
        Ok(())
    }

    async fn expect(&mut self, frame: &Frame) -> Result<Request> {
        let on = frame.on.as_deref().unwrap_or("");
        let (session, not) = match on.strip_prefix('!') {
            Some(other) => (None, Some(self.session(other)?)),
            None if on.is_empty() => (None, None),
            None => (Some(self.session(on)?), None),
        };
        let fits = |request: &Request| {
            frame.frame == request.kind.to_string()
                && session.is_none_or(|session| request.session == session)
                && not.is_none_or(|session| request.session != session)
                && frame.keys.as_ref().is_none_or(|keys| *keys == request.keys)
                && frame.wait.is_none_or(|wait| wait == request.wait)
                && frame.lease.is_none_or(|lease| lease == request.lease)
                && frame.node.is_none_or(|node| node == request.node)
                && (frame.token.as_ref()).is_none_or(|token| *token == request.token.to_string())
        };
        let within = frame.within_ms.map_or(SOON, Duration::from_millis);
        self.peer.take(fits, within).await
    }

    async fn reply(&mut self, to: &str, reply: &Reply) -> Result<()> {
        let request = self.requests.get(to).context("no such request")?.clone();
        let kind = reply.frame.chars().next().context("a frame")?;
        self.next_token += 1;
        let token = match &reply.token {
            Some(token) => token.parse()?,
            None => self.next_token,
        };
        match kind {
            'A' | 'S' => self.ledger.granted(token, request.session, Instant::now()),
            'M' => self.ledger.anew(),
            'E' if matches!(reply.code, 3 | 4) => self.ledger.anew(),
            _ => {}
        }
        let mut bytes = reply_to(&request, kind, token, reply.code, reply.slot);
        if reply.halves_ms > 0 {
            let rest = bytes.split_off(bytes.len() / 2);
            self.peer.order(request.session, Order::Bytes(bytes));
            sleep(Duration::from_millis(reply.halves_ms)).await;
            bytes = rest;
        }
        self.peer.order(request.session, Order::Bytes(bytes));
        Ok(())
    }

    /// Answers an acquire with a grant of a fresh token.
    pub(crate) fn grant(&mut self, request: &Request) -> u64 {
        self.next_token += 1;
        self.ledger
            .granted(self.next_token, request.session, Instant::now());
        let bytes = reply_to(request, request.kind, self.next_token, 0, 0);
        self.peer.order(request.session, Order::Bytes(bytes));
        self.next_token
    }

    fn session(&self, request: &str) -> Result<usize> {
        let request = self.requests.get(request);
        Ok(request.context("no such request")?.session)
    }
}

/// `name`, or with `times` above 0 `name0`, `name1` …
fn numbered(name: &str, times: u32) -> impl Iterator<Item = (u32, String)> {
    let many = times > 0;
    (0..times.max(1)).map(move |n| match many {
        true => (n, format!("{name}{n}")),
        false => (n, name.to_owned()),
    })
}

/// A value that is wanted as such, a number between `min` and `max`, or an answer within an answer
/// that is an error of this `kind`, or `ok`.
fn fits(value: &Value, wanted: &Value) -> bool {
    if let Some(kind) = wanted["kind"].as_str() {
        let found = value["error"]["kind"].as_str();
        return found.unwrap_or(if value["ok"].is_object() { "ok" } else { "" }) == kind;
    }
    let bound = |name: &str| wanted.get(name).and_then(Value::as_f64);
    match (bound("min"), bound("max")) {
        (None, None) => value == wanted,
        (min, max) => value.as_f64().is_some_and(|value| {
            value >= min.unwrap_or(f64::MIN) && value <= max.unwrap_or(f64::MAX)
        }),
    }
}

fn bytes(hex: &str) -> Result<Vec<u8>> {
    let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16);
    Ok(digits.chunks(2).map(byte).collect::<Result<_, _>>()?)
}

/// The bytes of an answer; also ones that do not fit the request.
pub(crate) fn reply_to(request: &Request, kind: char, token: u64, code: u8, slot: u8) -> Vec<u8> {
    let id = RequestId::new(request.id).expect("the codec let it through");
    let granted = || Token::new(token).expect("tokens are not 0");
    let reply = match kind {
        'A' => WireReply::Acquired {
            id,
            token: granted(),
        },
        'S' => WireReply::SetAcquired {
            id,
            token: granted(),
        },
        'T' => WireReply::TimedOut { id },
        'B' => WireReply::Busy { id },
        'R' => WireReply::Released { id },
        'G' => WireReply::SetReleased { id },
        'N' => WireReply::NotCurrent { id },
        'I' => WireReply::Indeterminate { id },
        'M' => WireReply::Moved {
            id,
            slot: Slot::new(slot),
        },
        'E' => WireReply::Error {
            id,
            code: error_code(code),
        },
        other => panic!("no reply is called {other}"),
    };
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

fn error_code(code: u8) -> ErrorCode {
    match code {
        1 => ErrorCode::BadKey,
        2 => ErrorCode::BadLease,
        3 => ErrorCode::NotActive,
        4 => ErrorCode::NoLeader,
        5 => ErrorCode::BadKeySet,
        6 => ErrorCode::GroupMismatch,
        7 => ErrorCode::BadToken,
        other => panic!("no code {other}"),
    }
}
