//! `POST /v1/completions`, `POST /v1/chat/completions` and `GET /v1/models`.

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;

use crate::{
    admission::leave_unread,
    auth::authorize,
    client::Client,
    forward::Forward,
    openai::{ApiError, Request},
    state::State,
};

/// Places the request, and streams the answer.
pub(crate) async fn complete(
    state: web::Data<State>,
    client: web::Data<Client>,
    head: HttpRequest,
    mut body: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let answer = place(&state, &client, &head, &mut body).await;
    let outcome = match &answer {
        Ok(_) => "answered",
        Err(error) => {
            leave_unread(body);
            error.code()
        }
    };
    metrics::counter!("kv_gateway_requests_total", "outcome" => outcome).increment(1);
    answer
}

async fn place(
    state: &State,
    client: &Client,
    head: &HttpRequest,
    body: &mut web::Payload,
) -> Result<HttpResponse, ApiError> {
    authorize(head, &state.client_tokens)?;
    let open = state.admission.open()?;
    let (body, body_permit) = state
        .admission
        .read(head, body, state.timeouts.body)
        .await?;
    let request = Request::of(&body)?;
    let name = request.model.as_deref();
    let model = state.fleet.model(name).ok_or_else(|| match name {
        Some(name) => ApiError::UnknownModel(name.to_owned()),
        None => ApiError::BadRequest("the body must have `model`".into()),
    })?;
    let job = model.job(&request, &request.prompts()?);
    let streams = request.streams();
    let forward = Forward {
        model,
        job,
        head,
        streams,
        keeps_token: !state.client_tokens.is_empty(),
        limits: &state.limits,
        timeouts: &state.timeouts,
        body_permit,
        open,
        body: body.clone(),
    };
    forward.run(client).await
}

/// The models that requests may ask for.
pub(crate) async fn models(
    state: web::Data<State>,
    head: HttpRequest,
) -> Result<HttpResponse, ApiError> {
    #[derive(Serialize)]
    struct List<'a> {
        object: &'static str,
        data: Vec<Entry<'a>>,
    }
    #[derive(Serialize)]
    struct Entry<'a> {
        id: &'a str,
        object: &'static str,
        created: u64,
        owned_by: &'static str,
    }
    authorize(&head, &state.client_tokens)?;
    let entry = |name| Entry {
        id: name,
        object: "model",
        created: state.began_at,
        owned_by: "kv-gateway",
    };
    let data = state
        .fleet
        .models()
        .map(|model| entry(&model.name))
        .collect();
    Ok(HttpResponse::Ok().json(List {
        object: "list",
        data,
    }))
}
