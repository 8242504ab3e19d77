// A service that knows nothing of idempotency: it makes every payment that it is
// sent, however often. It prints its port, and ends when its input does.
"use strict";
const http = require("node:http");

const delay = Number(process.argv[2]); // of a payment, in milliseconds
const payments = [];

const service = http.createServer((request, response) => {
  let body = "";
  request.on("data", (chunk) => { body += chunk; });
  request.on("end", () => setTimeout(() => answer(request, body, response), request.method === "POST" ? delay : 0));
});

function answer(request, body, response) {
  response.setHeader("Content-Type", "application/json");
  if (request.method !== "POST") return response.end(JSON.stringify(payments));
  payments.push({
    number: payments.length + 1,
    amount: JSON.parse(body).amount,
    operation: request.headers["idempotency-operation-id"],
    attempt: request.headers["idempotency-attempt"],
  });
  response.writeHead(201);
  response.end(JSON.stringify(payments.at(-1)));
}

service.listen(0, "127.0.0.1", () => console.log(service.address().port));
process.stdin.resume().on("end", () => process.exit());
