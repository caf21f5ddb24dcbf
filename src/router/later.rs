//! Answers that take time.

use actix::{
    Context, Message,
    dev::{MessageResponse, OneshotSender},
};
use tokio::sync::oneshot;

use super::RouterActor;

/// An answer that comes when the work for it is done. If the router dies before, whoever asked learns that.
#[derive(Debug)]
pub struct Later<T>(pub(super) oneshot::Receiver<T>);

impl<M: Message> MessageResponse<RouterActor, M> for Later<M::Result> {
    fn handle(mut self, _: &mut Context<RouterActor>, asked: Option<OneshotSender<M::Result>>) {
        let Some(asked) = asked else {
            return;
        };
        if let Ok(answer) = self.0.try_recv() {
            let _ = asked.send(answer);
            return;
        }
        actix_rt::spawn(async {
            if let Ok(answer) = self.0.await {
                let _ = asked.send(answer);
            }
        });
    }
}
