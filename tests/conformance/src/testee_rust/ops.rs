//! The ops of `PROTOCOL.md`, as a user of the Rust client would write them.

use std::collections::HashMap;
use std::io::Write;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use ticketing_client::{ReleaseOutcome, Ticket, TicketBroker, TicketError, TicketSet, TlsMode};
use tokio::sync::Notify;

use crate::fault::Fault;

/// Everything that the runner has a name for.
pub(crate) struct Testee {
    fault: Option<Fault>,
    brokers: Mutex<HashMap<String, TicketBroker>>,
    tickets: Mutex<HashMap<String, Arc<Held>>>,
    running: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// A ticket on one key or on several.
pub(crate) enum Held {
    One(Ticket),
    Set(TicketSet),
}

macro_rules! held {
    ($held:expr, $ticket:ident => $use:expr) => {
        match $held {
            Held::One($ticket) => $use,
            Held::Set($ticket) => $use,
        }
    };
}

impl Held {
    fn keys(&self) -> Vec<String> {
        match self {
            Held::One(ticket) => vec![ticket.key().to_owned()],
            Held::Set(set) => set.keys().map(str::to_owned).collect(),
        }
    }

    async fn release(&self) -> Result<ReleaseOutcome, TicketError> {
        held!(self, ticket => ticket.release().await)
    }
}

type Answer = Result<Value, Value>;

impl Testee {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        Testee {
            fault,
            brokers: Mutex::default(),
            tickets: Mutex::default(),
            running: Mutex::default(),
        }
    }

    /// Starts a command. The first part of each call is made before the next line is read.
    pub(crate) async fn begin(self: &Arc<Self>, command: Value) {
        let id = command["id"].as_u64().expect("an id");
        let cancelled = Arc::new(Notify::new());
        lock(&self.running).insert(id, Arc::clone(&cancelled));
        let testee = Arc::clone(self);
        let mut call = Box::pin(async move {
            let answer = testee.run(&command, &cancelled).await;
            lock(&testee.running).remove(&id);
            say(id, &answer);
            if testee.fault == Some(Fault::CompletesTwice) && command["op"] == "acquire" {
                say(id, &answer);
            }
        });
        let is_done =
            std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx).is_ready()));
        if !is_done.await {
            tokio::spawn(call);
        }
    }

    /// At the end of the input.
    pub(crate) async fn close_all(&self) {
        let brokers: Vec<_> = lock(&self.brokers)
            .drain()
            .map(|(_, broker)| broker)
            .collect();
        for broker in brokers {
            broker.close().await;
        }
    }

    async fn run(&self, command: &Value, cancelled: &Notify) -> Answer {
        let text = |field: &str| command[field].as_str().unwrap_or_default().to_owned();
        match command["op"].as_str().unwrap_or_default() {
            "connect" => self.connect(command),
            "wait_ready" => {
                let timeout = duration(&command["timeout"])?;
                let broker = self.broker(command)?;
                Ok(json!({"ready": broker.wait_ready(timeout).await}))
            }
            "acquire" => self.acquire(command, cancelled).await,
            "cancel" => {
                let target = command["target"].as_u64().unwrap_or_default();
                let running = lock(&self.running).get(&target).cloned();
                if let Some(call) = &running {
                    call.notify_one();
                }
                Ok(json!({"found": running.is_some()}))
            }
            "release" => match self.held(command)?.release().await {
                Ok(ReleaseOutcome::Released) => Ok(json!({"outcome": "Released"})),
                Ok(ReleaseOutcome::NotCurrent) => Ok(json!({"outcome": "NotCurrent"})),
                Err(e) => Err(error(&e)),
            },
            "drop" => {
                lock(&self.tickets).remove(&text("ticket"));
                Ok(json!({}))
            }
            "gc" => Ok(json!({})),
            "keep" => {
                held!(&*self.held(command)?, ticket => ticket.keep());
                Ok(json!({}))
            }
            "remaining" => {
                let left = held!(&*self.held(command)?, ticket => ticket.remaining());
                Ok(json!({"remaining_ms": millis(left)}))
            }
            "expired" => {
                let (held, timeout) = (self.held(command)?, duration(&command["timeout"])?);
                let expired = async { held!(&*held, ticket => ticket.expired().await) };
                let ended = tokio::time::timeout(timeout, expired).await;
                Ok(json!({"expired": ended.is_ok()}))
            }
            "stats" => Ok(stats(&self.broker(command)?)),
            "close" => {
                let broker = self.broker(command)?;
                if self.fault == Some(Fault::LeaksAtClose) {
                    return Ok(json!({}));
                }
                broker.close().await;
                Ok(json!({}))
            }
            other => Err(unable(&format!("no op {other:?}"))),
        }
    }

    fn connect(&self, command: &Value) -> Answer {
        let addrs: Vec<String> = list(&command["addrs"]);
        let options = ["token", "tls", "cluster", "max_pending"];
        let has_options = options.iter().any(|option| !command[option].is_null());
        let made = if addrs.len() == 1 && !has_options {
            TicketBroker::connect(addrs[0].as_str())
        } else {
            let mut builder = TicketBroker::builder().addrs(addrs);
            if let Some(token) = command["token"].as_str() {
                builder = builder.token(token);
            }
            if let Some(cluster) = command["cluster"].as_str() {
                builder = builder.cluster(cluster);
            }
            if let Some(most) = command["max_pending"].as_u64() {
                builder = builder.max_pending(usize::try_from(most).unwrap_or(usize::MAX));
            }
            builder = match (&command["tls"], command["tls"].as_str()) {
                (Value::Null, _) | (_, Some("off")) => builder,
                (_, Some("system-roots")) => builder.tls(TlsMode::SystemRoots),
                (_, Some("insecure-skip-verify")) => builder.tls(TlsMode::InsecureSkipVerify),
                (tls, _) => builder.tls(TlsMode::Ca(tls["ca"].as_str().unwrap_or_default().into())),
            };
            builder.connect()
        };
        let broker = made.map_err(|e| error(&e))?;
        let name = command["broker"].as_str().unwrap_or_default();
        lock(&self.brokers).insert(name.to_owned(), broker);
        Ok(json!({}))
    }

    async fn acquire(&self, command: &Value, cancelled: &Notify) -> Answer {
        let broker = self.broker(command)?;
        let [mut wait, mut lease, min_work] = [
            duration(&command["wait"])?,
            duration(&command["lease"])?,
            duration(&command["min_work"])?,
        ];
        if self.fault == Some(Fault::SaturatesADuration) {
            wait = wait.min(Duration::from_secs(255));
            lease = lease.min(Duration::from_secs(250));
        }
        let min_work_asked = match self.fault {
            Some(Fault::HandsOutALateGrant) => Duration::ZERO,
            _ => min_work,
        };
        let keys: Vec<String> = list(&command["keys"]);
        let is_set = command["set"] == true;
        let ask = async || match is_set {
            true => {
                let set = broker
                    .acquire_set(keys.clone(), wait, lease, min_work_asked)
                    .await;
                set.map(Held::Set)
            }
            false => {
                let key = keys.first().cloned().unwrap_or_default();
                let one = broker.acquire(key, wait, lease, min_work_asked).await;
                one.map(Held::One)
            }
        };
        if command["cancelled_before"] == true {
            return Err(native("cancelled"));
        }
        let acquired = match command["deadline"].as_f64() {
            Some(seconds) => {
                let deadline = Duration::from_secs_f64(seconds);
                match tokio::time::timeout(deadline, ask()).await {
                    Ok(acquired) => acquired,
                    Err(_) => return Err(native("deadline")),
                }
            }
            None => {
                let mut asking = pin!(ask());
                tokio::select! {
                    biased;
                    acquired = &mut asking => acquired,
                    () = cancelled.notified(), if self.fault != Some(Fault::IgnoresCancel) => {
                        if self.fault == Some(Fault::DropsACrossedGrant)
                            && let Ok(Ok(held)) =
                                tokio::time::timeout(Duration::from_millis(700), asking).await
                        {
                            held!(&held, ticket => ticket.keep());
                        }
                        return Err(native("cancelled"));
                    }
                }
            }
        };
        let acquired = match (acquired, self.fault) {
            (Err(TicketError::Indeterminate { .. }), Some(Fault::AcquiresAgain)) => ask().await,
            (Err(TicketError::Timeout { .. }), Some(Fault::SwallowsAnError)) => {
                return Ok(json!({"token": "1", "remaining_ms": 1, "keys": keys}));
            }
            (acquired, _) => acquired,
        };
        let held = Arc::new(acquired.map_err(|e| error(&e))?);
        let answer = self.ticket(&held);
        match command["scope"].as_str() {
            None => {
                let name = command["ticket"].as_str().unwrap_or_default();
                lock(&self.tickets).insert(name.to_owned(), held);
                Ok(answer)
            }
            Some(how) => {
                if self.fault == Some(Fault::ForgetsTheScope) {
                    held!(&*held, ticket => ticket.keep());
                }
                // A scope is a block; its own error leaves it, and the ticket is dropped.
                let left: Result<(), &str> = match how {
                    "throw" => Err("the testee's own"),
                    _ => Ok(()),
                };
                drop(held);
                let mut answer = answer;
                answer["threw"] = json!(left.is_err());
                Ok(answer)
            }
        }
    }

    fn ticket(&self, held: &Held) -> Value {
        let left = held!(held, ticket => ticket.remaining());
        let mut token = held!(held, ticket => ticket.token());
        if self.fault == Some(Fault::TruncatesTheToken) {
            token &= (1 << 53) - 1;
        }
        json!({"remaining_ms": millis(left), "token": token.to_string(), "keys": held.keys()})
    }

    fn broker(&self, command: &Value) -> Result<TicketBroker, Value> {
        let name = command["broker"].as_str().unwrap_or_default();
        let found = lock(&self.brokers).get(name).cloned();
        found.ok_or_else(|| unable(&format!("no broker {name:?}")))
    }

    fn held(&self, command: &Value) -> Result<Arc<Held>, Value> {
        let name = command["ticket"].as_str().unwrap_or_default();
        let found = lock(&self.tickets).get(name).cloned();
        found.ok_or_else(|| unable(&format!("no ticket {name:?}")))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("not poisoned")
}

fn say(id: u64, answer: &Answer) {
    let line = match answer {
        Ok(ok) => json!({"id": id, "ok": ok}),
        Err(error) => json!({"id": id, "error": error}),
    };
    let mut out = std::io::stdout().lock();
    // The runner is gone when this fails; the end of the input follows.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn list(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .map(|item| item.as_str().unwrap_or_default().to_owned())
        .collect()
}

fn duration(value: &Value) -> Result<Duration, Value> {
    let seconds = value
        .as_f64()
        .ok_or_else(|| unable("no number of seconds"))?;
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

fn millis(value: Duration) -> u64 {
    u64::try_from(value.as_millis()).unwrap_or(u64::MAX)
}

fn unable(detail: &str) -> Value {
    json!({"kind": "testee", "detail": detail, "message": detail})
}

fn native(kind: &str) -> Value {
    json!({"kind": kind, "detail": "", "message": ""})
}

fn error(error: &TicketError) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Value| drop(fields.insert(name.to_owned(), value));
    set("kind", json!(error.kind()));
    set("message", json!(error.to_string()));
    let detail = match error {
        TicketError::InsufficientLease {
            remaining_ms,
            min_work_ms,
            detail,
        } => {
            set("remaining_ms", json!(remaining_ms));
            set("min_work_ms", json!(min_work_ms));
            detail
        }
        TicketError::UnsupportedDuration {
            argument,
            max_seconds,
            detail,
        } => {
            set("argument", json!(argument));
            set("max_seconds", json!(max_seconds));
            detail
        }
        TicketError::InvalidInput { argument, detail } => {
            set("argument", json!(argument));
            detail
        }
        TicketError::Protocol { code, detail } => {
            set("code", json!(code));
            detail
        }
        TicketError::Timeout { detail }
        | TicketError::Cancelled { detail }
        | TicketError::Closed { detail }
        | TicketError::Busy { detail }
        | TicketError::ClientCapacity { detail }
        | TicketError::NotConnected { detail }
        | TicketError::Auth { detail }
        | TicketError::Indeterminate { detail }
        | TicketError::Tls { detail }
        | TicketError::Io { detail }
        | TicketError::Internal { detail } => detail,
        _ => "",
    };
    set("detail", json!(detail));
    Value::Object(fields)
}

fn stats(broker: &TicketBroker) -> Value {
    let stats = broker.stats();
    json!({
        "sessions_usable": stats.sessions_usable, "waiting": stats.waiting, "sent": stats.sent,
        "granted": stats.granted, "released": stats.released, "given_up": stats.given_up,
        "compensated": stats.compensated, "automatic_dropped": stats.automatic_dropped,
        "last_connection_error": stats.last_connection_error,
    })
}
