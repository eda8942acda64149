#!/usr/bin/env node
// A personal WhatsApp number for Hermes: a linked device (by baileys) behind the protocol in README.md.

import crypto from 'node:crypto'
import fs from 'node:fs'
import http from 'node:http'
import makeWASocket, {
  BufferJSON, DisconnectReason, downloadMediaMessage, normalizeMessageContent, proto, useMultiFileAuthState
} from 'baileys'
import pino from 'pino'
import qrcode from 'qrcode-terminal'
import { CIPHERTEXT, eventOf, hasFile, unwrapped } from './reading.js'
import { Files, Queue, Sent, samePerson } from './storage.js'
import { contentOf, quotedOf } from './writing.js'

const PORT = Number(process.env.HERMES_BRIDGE_PORT || 8645)
const TOKEN = process.env.HERMES_BRIDGE_TOKEN || ''
const FOLDER = process.env.HERMES_BRIDGE_FOLDER || 'session'
const LARGEST = 110_000_000
const OLDEST = 7 * 24 * 3600

if (TOKEN.length < 16) {
  console.log('HERMES_BRIDGE_TOKEN must be set, with 16 characters or more')
  process.exit(2)
}
fs.mkdirSync(FOLDER, { recursive: true, mode: 0o700 })
const queue = new Queue(FOLDER)
const files = new Files(FOLDER, BufferJSON, content => proto.Message.fromObject(content))
const sent = new Sent(FOLDER)
const written = new Map() // id → message, for WhatsApp's requests to encrypt one again
const unread = new Map() // chat → keys
let sock = null
let state = 'starting'
let qrText = null
let qr = null
let failures = 0

function remember (map, key, value, most = 500) {
  map.set(key, value)
  if (map.size > most) map.delete(map.keys().next().value)
}

// ---------------------------------------------------------------------------------------------- WhatsApp

async function open () {
  const { state: auth, saveCreds } = await useMultiFileAuthState(FOLDER)
  sock = makeWASocket({
    auth,
    logger: pino({ level: 'silent' }), // its lines would hold messages
    markOnlineOnConnect: false,
    syncFullHistory: false,
    getMessage: async key => written.get(key.id)
  })
  sock.ev.on('creds.update', saveCreds)
  sock.ev.on('connection.update', changed)
  sock.ev.on('messages.upsert', ({ messages }) => { for (const message of messages) received(message) })
}

function changed (update) {
  if (update.qr) {
    state = 'pairing'
    qr = update.qr
    qrcode.generate(update.qr, { small: true }, text => { qrText = text })
  }
  if (update.connection === 'open') {
    state = 'connected'
    qr = qrText = null
    failures = 0
    samePerson(FOLDER, sock.user?.id, sock.user?.lid)
    console.log('connected to WhatsApp')
  }
  if (update.connection === 'close') {
    const code = update.lastDisconnect?.error?.output?.statusCode
    if (code === DisconnectReason.loggedOut) {
      state = 'logged_out'
      console.log('the phone has removed this device: remove the session folder and pair again')
      return
    }
    if (state !== 'pairing') state = 'starting'
    const pause = code === DisconnectReason.restartRequired ? 0 : Math.min(60, 2 ** failures++)
    console.log(`the connection to WhatsApp has ended (${code}); next try in ${pause} s`)
    setTimeout(() => open().catch(failed), pause * 1000)
  }
}

function failed (error) {
  console.log(`WhatsApp can't be opened: ${error.message}`)
  process.exit(1)
}

function received (message) {
  const key = message.key || {}
  try {
    samePerson(FOLDER, key.participant || key.remoteJid, key.participantAlt || key.remoteJidAlt)
    if (message.messageStubType === CIPHERTEXT) {
      console.log(`a message in ${key.remoteJid} can't be decrypted yet: its sender's phone is asked for it again`)
    }
    const event = eventOf(message, normalizeMessageContent)
    if (!event || (event.timestamp && Date.now() / 1000 - event.timestamp > OLDEST)) return
    if (event.files) {
      const id = `${key.id}-${crypto.createHash('sha256').update(event.sender).digest('hex').slice(0, 12)}`
      files.put(id, message)
      event.files = event.files.map(file => ({ id, ...file }))
    }
    queue.put(event)
    if (event.type === 'message') remember(unread, key.remoteJid, [...(unread.get(key.remoteJid) || []), key].slice(-50))
  } catch (error) {
    console.log(`a message could not be stored, and the bridge ends: ${error.message}`)
    process.exit(1)
  }
}

// ---------------------------------------------------------------------------------------------- the protocol

class Refusal extends Error {
  constructor (status, text) {
    super(text)
    this.status = status
  }
}

async function send (chat, nonce, content, quote) {
  if (!chat || !nonce) throw new Refusal(400, 'chat and nonce are needed')
  const before = sent.get(nonce)
  if (before?.done) return { id: before.id }
  if (state !== 'connected') throw new Refusal(503, 'not connected to WhatsApp')
  const id = '3EB0' + crypto.createHash('sha256').update(nonce).digest('hex').slice(0, 18).toUpperCase() // a repeated one has it again
  const options = { messageId: id }
  if (quote?.id) options.quoted = quotedOf(chat, quote, sock.user)
  sent.note(nonce, id, false)
  try {
    const made = await sock.sendMessage(chat, content, options)
    remember(written, id, made?.message)
  } catch (error) {
    const code = error?.output?.statusCode
    if (code === 429) throw new Refusal(429, 'rate limit')
    if (code === 400 || code === 403 || code === 404) throw new Refusal(400, error.message)
    throw new Refusal(504, error.message)
  }
  sent.note(nonce, id, true)
  return { id }
}

async function typing (chat) {
  if (state !== 'connected') throw new Refusal(503, 'not connected to WhatsApp')
  const keys = unread.get(chat)
  unread.delete(chat)
  if (keys) await sock.readMessages(keys)
  await sock.sendPresenceUpdate('composing', chat)
  return {}
}

async function media (id) {
  const message = files.get(id)
  const content = unwrapped(message?.message, normalizeMessageContent)
  if (!hasFile(content)) throw new Refusal(404, 'no such file')
  try {
    const again = { logger: pino({ level: 'silent' }), reuploadRequest: sock.updateMediaMessage }
    return await downloadMediaMessage({ ...message, message: content }, 'buffer', {}, again)
  } catch (error) {
    throw new Refusal(state === 'connected' ? 410 : 503, `the file can't be fetched from WhatsApp: ${error.message}`)
  }
}

async function answer (method, url, body) {
  const asked = Object.fromEntries(url.searchParams)
  const route = `${method} ${url.pathname}`
  if (route === 'GET /status') {
    return { protocol: 1, state, id: sock?.user?.id, lid: sock?.user?.lid, name: sock?.user?.name, qr, qr_text: qrText }
  }
  if (route === 'GET /events') return { ...(await queue.poll(asked.ack, Number(asked.wait || 0))), state }
  if (route === 'GET /sent') {
    const found = sent.get(asked.nonce)
    return { sent: found ? (found.done ? true : null) : false }
  }
  if (method === 'GET' && url.pathname.startsWith('/media/')) return media(decodeURIComponent(url.pathname.slice('/media/'.length)))
  if (route === 'POST /media') return send(asked.chat, asked.nonce, contentOf(asked, body))
  let content
  try {
    content = JSON.parse(body.toString('utf8') || '{}')
  } catch {
    throw new Refusal(400, 'the body is not JSON')
  }
  if (route === 'POST /send') {
    if (!content.text) throw new Refusal(400, 'a text is needed')
    return send(content.chat, content.nonce, { text: content.text }, content.quote)
  }
  if (route === 'POST /typing') return typing(content.chat)
  throw new Refusal(404, 'unknown path')
}

function allowed (request) {
  const digest = text => crypto.createHash('sha256').update(text).digest()
  return crypto.timingSafeEqual(digest(request.headers.authorization || ''), digest(`Bearer ${TOKEN}`))
}

async function bodyOf (request) {
  const parts = []
  let size = 0
  for await (const part of request) {
    size += part.length
    if (size > LARGEST) throw new Refusal(413, 'too large')
    parts.push(part)
  }
  return Buffer.concat(parts)
}

const server = http.createServer(async (request, response) => {
  let status = 200
  let found
  try {
    if (!allowed(request)) throw new Refusal(401, 'wrong token')
    found = await answer(request.method, new URL(request.url, 'http://bridge'), await bodyOf(request))
  } catch (error) {
    status = error instanceof Refusal ? error.status : 500
    found = { error: error.message }
    if (status === 500) console.log(`${request.method} ${request.url.split('?')[0]}: ${error.message}`)
  }
  const raw = Buffer.isBuffer(found)
  const headers = { 'Content-Type': raw ? 'application/octet-stream' : 'application/json' }
  response.writeHead(status, status === 429 ? { ...headers, 'Retry-After': '30' } : headers)
  response.end(raw ? found : JSON.stringify(found))
})

server.on('error', error => { console.log(`port ${PORT}: ${error.message}`); process.exit(1) })
server.listen(PORT, '127.0.0.1', () => { console.log(`listening on 127.0.0.1:${PORT}`); open().catch(failed) })
if (process.env.HERMES_BRIDGE_SUPERVISED) {
  process.stdin.resume()
  process.stdin.on('end', () => process.exit(0))
}
for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => process.exit(0))
