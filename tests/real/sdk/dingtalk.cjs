// DingTalk's own SDKs: Stream mode (dingtalk-stream), and the API of robots (@alicloud/dingtalk).
"use strict";
const { answer, tell } = require("./commands.cjs");
const axios = require("axios");
const { DWClient, TOPIC_ROBOT } = require("dingtalk-stream");
const { Config } = require("@alicloud/openapi-client");
const { RuntimeOptions } = require("@alicloud/tea-util");
const robot = require("@alicloud/dingtalk/robot_1_0");
const oauth = require("@alicloud/dingtalk/oauth2_1_0");

let stream, token, clients, base = "", old = "";
// dingtalk-stream has no setting for the addresses: only those are changed, on the way out.
(axios.default || axios).interceptors.request.use((request) => {
  request.url = request.url.replace(/^https:\/\/api\.dingtalk\.com/, base).replace(/^https:\/\/oapi\.dingtalk\.com/, old);
  return request;
});

async function called(client, action, request, headers) {
  headers.xAcsDingtalkAccessToken = token;
  return (await client[`${action}WithOptions`](request, headers, new RuntimeOptions({}))).body;
}

answer({
  async login({ address, oldAddress, id, secret }) {
    [base, old] = [address, oldAddress];
    const config = new Config({ protocol: "http", endpoint: address.replace("http://", ""), regionId: "central" });
    clients = { robot: new robot.default(config) };
    const given = await new oauth.default(config).getAccessToken(new oauth.GetAccessTokenRequest({ appKey: id, appSecret: secret }));
    token = given.body.accessToken;
    return given.body;
  },
  async connect({ id, secret }) {
    stream = new DWClient({ clientId: id, clientSecret: secret, ua: "hermes" });
    stream.reconnectInterval = 20;
    stream.registerCallbackListener(TOPIC_ROBOT, (frame) => tell("message", { id: frame.headers.messageId, ...JSON.parse(frame.data) }));
    await stream.connect();
    return stream.connected;
  },
  disconnect: () => stream.disconnect(),
  acknowledge: ({ id }) => stream.socketCallBackResponse(id, null),
  oldToken: () => stream.getAccessToken(),
  async webhook({ url, body }) {
    return (await axios({ url, method: "POST", data: body, headers: { "x-acs-dingtalk-access-token": token } })).data;
  },
  person: ({ request }) => called(clients.robot, "batchSendOTO", new robot.BatchSendOTORequest(request), new robot.BatchSendOTOHeaders({})),
  group: ({ request }) => called(clients.robot, "orgGroupSend", new robot.OrgGroupSendRequest(request), new robot.OrgGroupSendHeaders({})),
  file: ({ request }) =>
    called(clients.robot, "robotMessageFileDownload", new robot.RobotMessageFileDownloadRequest(request), new robot.RobotMessageFileDownloadHeaders({})),
});
