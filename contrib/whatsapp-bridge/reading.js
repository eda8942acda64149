// A message of WhatsApp as an event of the protocol.

const KINDS = {
  imageMessage: 'image', videoMessage: 'video', ptvMessage: 'video', audioMessage: 'audio', documentMessage: 'file', stickerMessage: 'image'
}
const FILES = Object.keys(KINDS)
export const REVOKE = 0 // of WhatsApp's own description
export const EDIT = 14
export const CIPHERTEXT = 2
// What WhatsApp exchanges besides messages: keys, votes and pins, calls, and the frame of an album, whose pictures come each by itself.
const SILENT = new Set([
  'senderKeyDistributionMessage', 'fastRatchetKeySenderKeyDistributionMessage', 'protocolMessage', 'stickerSyncRmrMessage',
  'pollUpdateMessage', 'pollResultSnapshotMessage', 'keepInChatMessage', 'pinInChatMessage', 'encReactionMessage', 'encEventResponseMessage',
  'secretEncryptedMessage', 'placeholderMessage', 'albumMessage', 'callLogMesssage', 'bcallMessage', 'scheduledCallEditMessage',
  'limitSharingMessage', 'statusMentionMessage', 'groupStatusMentionMessage', 'statusNotificationMessage'
])

// null for our own messages, broadcasts, channels, and what is no message. `normalize` unwraps what a message is wrapped in.
export function eventOf (message, normalize) {
  const key = message.key || {}
  const chat = key.remoteJid || ''
  if (key.fromMe || !key.id || !/@(s\.whatsapp\.net|lid|g\.us)$/.test(chat)) return null
  const content = unwrapped(message.message, normalize)
  if (!content) return null
  const common = {
    id: key.id,
    chat,
    sender: key.participant || chat,
    name: message.pushName || undefined,
    timestamp: Number(message.messageTimestamp || 0)
  }
  const protocol = content.protocolMessage
  if (protocol) {
    const target = protocol.key?.id
    if (protocol.type === REVOKE && target) return { ...common, type: 'delete', target }
    if (protocol.type === EDIT && target) return { ...common, ...bodyOf(unwrapped(protocol.editedMessage, normalize) || {}), type: 'edit', target }
    return null
  }
  if (content.reactionMessage) return null
  const body = bodyOf(content)
  if (!body.text && !body.files) return null
  return { ...common, ...body, type: 'message' }
}

export function hasFile (content) {
  return FILES.some(kind => content?.[kind])
}

// The content without the messages around it, of which WhatsApp invents new ones.
export function unwrapped (content, normalize) {
  for (let depth = 0; depth < 5; depth++) {
    content = normalize(content)
    const inside = content?.[kindOf(content)]?.message
    if (!inside || typeof inside !== 'object') break
    content = inside
  }
  return content
}

// What a content is, as 'imageMessage'; undefined if a person has written nothing.
function kindOf (content) {
  return Object.keys(content).find(name => content[name] && (name === 'conversation' || (name.includes('Message') && !SILENT.has(name))))
}

function bodyOf (content) {
  const file = FILES.find(kind => content[kind])
  const inside = content[file] || content[kindOf(content)] || {}
  const body = { text: textOf(content) }
  const about = inside.contextInfo || {}
  if (about.mentionedJid?.length) body.mentions = about.mentionedJid
  if (about.isForwarded || about.forwardingScore > 0) body.forwarded = true
  if (about.stanzaId) {
    body.quoted = { id: about.stanzaId, sender: about.participant || '', text: textOf(about.quotedMessage || {}) }
  }
  if (file) {
    const size = Number(inside.fileLength || 0)
    body.files = [{ kind: KINDS[file], mime: inside.mimetype || undefined, name: inside.fileName || undefined, size: size || undefined }]
  }
  return body
}

function textOf (content) {
  const file = FILES.find(kind => content[kind])
  if (content.conversation) return content.conversation
  if (content.extendedTextMessage) return content.extendedTextMessage.text || ''
  if (file) return content[file].caption || ''
  const place = content.locationMessage || content.liveLocationMessage
  if (place) {
    const where = [place.name, place.address].filter(Boolean).join(', ')
    return `Location: ${where ? where + ' ' : ''}(${place.degreesLatitude}, ${place.degreesLongitude})`
  }
  const cards = content.contactMessage ? [content.contactMessage] : content.contactsArrayMessage?.contacts || []
  if (cards.length) {
    return cards.map(card => `Contact: ${[card.displayName, ...numbersOf(card.vcard || '')].filter(Boolean).join(', ')}`).join('\n')
  }
  const kind = kindOf(content)
  const inside = content[kind] || {}
  if (/^pollCreationMessage/.test(kind)) return `Poll: ${inside.name} (${(inside.options || []).map(one => one.optionName).join(', ')})`
  if (kind === 'eventMessage') return `Event: ${[inside.name, inside.description, inside.location?.name, dateOf(inside.startTime)].filter(Boolean).join(', ')}`
  if (kind === 'groupInviteMessage') return `Invitation to a group: ${[inside.groupName, inside.caption].filter(Boolean).join(', ')}`
  return chosenOf(inside) || (kind ? `[a message of a kind that the bridge does not know: ${kind}]` : '')
}

// The words of a button or row that was chosen, and of the messages of businesses that offer some.
function chosenOf (inside) {
  return inside.selectedDisplayText || inside.title || inside.singleSelectReply?.selectedRowId || inside.body?.text ||
    inside.nativeFlowResponseMessage?.paramsJson || inside.contentText || inside.description || inside.hydratedTemplate?.hydratedContentText || ''
}

function dateOf (seconds) {
  return Number(seconds) ? new Date(Number(seconds) * 1000).toISOString() : ''
}

function numbersOf (vcard) {
  return [...vcard.matchAll(/^TEL[^:]*:(.+)$/gm)].map(found => found[1].trim())
}
