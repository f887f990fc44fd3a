//! `GET /v1/models`.

use crate::app::App;
use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

/// The models that are served: one.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
    /// What Codex reads instead of `data` where it asks for a catalogue: it has nothing to say of this model.
    #[schema(value_type = Vec<Object>)]
    models: [(); 0],
}

/// A model.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// Extension, as vLLM has it: tokens that prompt and reply together may have.
    max_model_len: usize,
}

impl ModelObject {
    fn new(app: &App, id: String) -> Self {
        let model = &app.service.model;
        Self {
            id,
            object: "model",
            created: model.created(),
            owned_by: "calla",
            max_model_len: model.parts().context,
        }
    }
}

/// Lists the model that is loaded.
#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, body = ModelList)))]
pub(super) async fn list(State(app): State<App>) -> Json<ModelList> {
    let name = app.service.model.parts().name.clone();
    Json(ModelList { object: "list", data: vec![ModelObject::new(&app, name)], models: [] })
}

/// Describes a model. Every name is that of the model that is loaded, as in requests.
#[utoipa::path(
    get, path = "/v1/models/{model}", tag = "OpenAI",
    params(("model" = String, Path, description = "Any name")),
    responses((status = 200, body = ModelObject))
)]
pub(super) async fn retrieve(
    State(app): State<App>,
    Path(model): Path<String>,
) -> Json<ModelObject> {
    Json(ModelObject::new(&app, model))
}
