//! Configuration files of the peers.
//! Not their start: `peers.rs`.

use std::path::Path;

/// Chooses the backend by the body's `model`, as a gateway must; `http-no-delay` keeps events apart.
pub fn haproxy(port: u16, upstream_port: u16) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 8000\n\
         defaults\n  mode http\n  timeout connect 2s\n  timeout client 120s\n  timeout server 120s\n  \
         option http-no-delay\n  http-reuse always\n\
         frontend clients\n  bind 127.0.0.1:{port}\n  option http-buffer-request\n  \
         http-request set-var(txn.model) req.body,json_query('$.model')\n  \
         use_backend bench if {{ var(txn.model) -m str bench }}\n  default_backend bench\n\
         backend bench\n  server upstream 127.0.0.1:{upstream_port}\n"
    )
}

/// Configuration of a single process: with a master and a worker the figures would be split over two.
pub fn nginx(port: u16, upstream_port: u16, folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx.err crit;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n  access_log off;\n  keepalive_requests 100000000;\n  client_max_body_size 64m;\n  \
         client_body_buffer_size 2m;\n  client_body_temp_path {folder}/nginx-body;\n  \
         proxy_temp_path {folder}/nginx-proxy;\n  fastcgi_temp_path {folder}/nginx-fastcgi;\n  \
         uwsgi_temp_path {folder}/nginx-uwsgi;\n  scgi_temp_path {folder}/nginx-scgi;\n  \
         upstream bench {{ server 127.0.0.1:{upstream_port}; keepalive 1024; keepalive_requests 100000000; }}\n  \
         server {{\n    listen 127.0.0.1:{port};\n    location / {{\n      proxy_pass http://bench;\n      \
         proxy_http_version 1.1;\n      proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
    )
}

/// Whole bodies must fit beside a filter that waits for them.
const ENVOY_BUFFER_BYTES: usize = 8 * 1024 * 1024;

/// One listener, one route, one cluster; with a filter, one proxy-wasm filter on V8.
pub fn envoy(port: u16, upstream_port: u16, filter: Option<&Path>) -> String {
    let filter = filter.map_or(String::new(), |file| {
        format!(
            "{{\"name\":\"wasm\",\"typed_config\":{{\
             \"@type\":\"type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm\",\
             \"config\":{{\"name\":\"bench\",\"allow_on_headers_stop_iteration\":true,\
             \"vm_config\":{{\"runtime\":\"envoy.wasm.runtime.v8\",\
             \"code\":{{\"local\":{{\"filename\":\"{}\"}}}}}}}}}}}},",
            file.display()
        )
    });
    let address = |port: u16| {
        format!("{{\"socket_address\":{{\"address\":\"127.0.0.1\",\"port_value\":{port}}}}}")
    };
    format!(
        "{{\"static_resources\":{{\"listeners\":[{{\"name\":\"clients\",\"address\":{},\
         \"per_connection_buffer_limit_bytes\":{ENVOY_BUFFER_BYTES},\
         \"filter_chains\":[{{\"filters\":[{{\
         \"name\":\"envoy.filters.network.http_connection_manager\",\"typed_config\":{{\
         \"@type\":\"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager\",\
         \"stat_prefix\":\"bench\",\"generate_request_id\":false,\
         \"route_config\":{{\"virtual_hosts\":[{{\"name\":\"all\",\"domains\":[\"*\"],\
         \"routes\":[{{\"match\":{{\"prefix\":\"/\"}},\"route\":{{\"cluster\":\"bench\",\"timeout\":\"0s\"}}}}]}}]}},\
         \"http_filters\":[{filter}{{\"name\":\"router\",\"typed_config\":{{\
         \"@type\":\"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router\"}}}}]}}}}]}}]}}],\
         \"clusters\":[{{\"name\":\"bench\",\"type\":\"STATIC\",\"connect_timeout\":\"2s\",\
         \"per_connection_buffer_limit_bytes\":{ENVOY_BUFFER_BYTES},\
         \"circuit_breakers\":{{\"thresholds\":[{{\"max_connections\":8192,\"max_requests\":8192,\"max_pending_requests\":8192}}]}},\
         \"load_assignment\":{{\"cluster_name\":\"bench\",\"endpoints\":[{{\"lb_endpoints\":[{{\
         \"endpoint\":{{\"address\":{}}}}}]}}]}}}}]}}}}",
        address(port),
        address(upstream_port),
    )
}
