//! The gateway's own client: to the engines.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::{
    client::legacy::{self, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};

/// Keeps connections, sends a request again if a kept one turns out to be closed, and tells an answer that broke off from one that
/// ended (awc 3.11 does neither). Dropping a request or an answer closes its connection, which ends it at the engine.
pub(crate) type Client = legacy::Client<HttpConnector, Full<Bytes>>;

/// One for each thread: its connections stay there.
pub(crate) fn client(connect: Duration) -> Client {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(connect));
    connector.set_nodelay(true);
    legacy::Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(ENGINE_KEEP_ALIVE)
        .build(connector)
}

/// Of an idle connection. Less than the 5 s after which uvicorn, in which vLLM and SGLang run, closes it.
const ENGINE_KEEP_ALIVE: Duration = Duration::from_secs(4);
